"""Validates the DRA kinds, with the field paths and error types of the reference."""

from .errors import ErrorType, FieldError, summary
from .fields.requests import SelectorCheck, SelectorVerdict, accept_selectors
from .kinds.claim_status import validate_resource_claim_status
from .kinds.device_class import validate_device_class
from .kinds.device_taint_rule import validate_device_taint_rule, validate_device_taint_rule_status
from .kinds.pod import validate_pod_claim_status, validate_pod_claims
from .kinds.pod_group import validate_pod_group, validate_pod_group_status, validate_workload
from .kinds.pool_status_request import (
    validate_resource_pool_status_request,
    validate_resource_pool_status_request_status,
)
from .kinds.resource_claim import validate_resource_claim, validate_resource_claim_template
from .kinds.resource_slice import driver_warnings, validate_resource_slice

__all__ = [
    "ErrorType",
    "FieldError",
    "SelectorCheck",
    "SelectorVerdict",
    "accept_selectors",
    "driver_warnings",
    "summary",
    "validate_device_class",
    "validate_device_taint_rule",
    "validate_device_taint_rule_status",
    "validate_pod_claim_status",
    "validate_pod_claims",
    "validate_pod_group",
    "validate_pod_group_status",
    "validate_resource_claim",
    "validate_resource_claim_status",
    "validate_resource_claim_template",
    "validate_resource_pool_status_request",
    "validate_resource_pool_status_request_status",
    "validate_resource_slice",
    "validate_workload",
]
