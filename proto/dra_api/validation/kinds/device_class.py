"""What the API server refuses in a DeviceClass. Spec: api.md section 5."""

from __future__ import annotations

from functools import partial

from dra_api.resource import DeviceClass, DeviceClassSpec
from dra_api.validation.errors import Errors, FieldError, invalid
from dra_api.validation.fields.metadata import metadata, metadata_update
from dra_api.validation.fields.requests import CONFIGS_LIMIT, SelectorCheck, accept_selectors, configuration, selectors
from dra_api.validation.formats import is_extended_resource
from dra_api.validation.lists import limited
from dra_api.values.equality import same


def validate_device_class(
    new: DeviceClass, old: DeviceClass | None = None, *, check_selector: SelectorCheck = accept_selectors
) -> list[FieldError]:
    """What is wrong with a new class, or with the change from ``old`` to ``new``.

    Unchanged lists are validated as stored ones, which is less strict.
    """
    errors = list(metadata(new.metadata, namespaced=False))
    if old is not None:
        errors = list(metadata_update(new.metadata, old.metadata))
    errors += _spec(new.spec, old.spec if old is not None else None, check_selector)
    return errors


def _spec(new: DeviceClassSpec, old: DeviceClassSpec | None, check_selector: SelectorCheck) -> Errors:
    stored = old is not None and same(new.selectors, old.selectors)
    yield from selectors(new.selectors, "spec.selectors", check_selector, stored=stored)
    stored = old is not None and same(new.config, old.config)
    yield from limited(new.config, "spec.config", CONFIGS_LIMIT, partial(configuration, stored=stored))
    name = new.extended_resource_name
    if name is not None and not is_extended_resource(name):
        yield invalid("spec.extendedResourceName", name, "must be a valid extended resource name")
