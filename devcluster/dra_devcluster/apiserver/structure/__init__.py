"""The structure of the served kinds, as data rather than code per kind.

structure = Structure.load()                          the built-in kinds; CRDs: add_definition / remove_definition
structure.resource(group, version, plural)            Resource or None; .by_kind(group, version, kind); .resources()
problems = decode(resource.schema, body)              drops unknown fields and nulls in place, reports both and types
find_duplicates(raw_body)                             for fieldValidation=Strict
refusal(version, kind, problems) -> str               the text of the 400 answer
set_defaults(schema, obj)                             defaults of a custom resource (after decode), in place
validate(schema, obj) -> list[FieldError]                  its 422 causes
"""

from dra_devcluster.apiserver.structure.resources import set_defaults, validate

from .resources import Resource, Structure, Subresource, load_data
from .schema import ANY, Components, Problem, Schema, decode, find_duplicates, refusal

__all__ = [
    "ANY",
    "Components",
    "Problem",
    "Resource",
    "Schema",
    "Structure",
    "Subresource",
    "decode",
    "find_duplicates",
    "load_data",
    "refusal",
    "set_defaults",
    "validate",
]
