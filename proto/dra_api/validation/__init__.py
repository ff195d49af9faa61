"""Validates the DRA kinds, with the field paths and error types of the reference."""

from .claims import (
    validate_pod_claim_status,
    validate_pod_claims,
    validate_pod_group,
    validate_pod_group_status,
    validate_resource_claim,
    validate_resource_claim_status,
    validate_resource_claim_template,
    validate_workload,
)
from .formats import ErrorType, FieldError, summary
from .published import (
    driver_warnings,
    validate_device_class,
    validate_device_taint_rule,
    validate_device_taint_rule_status,
    validate_resource_pool_status_request,
    validate_resource_pool_status_request_status,
    validate_resource_slice,
)
from .requests import SelectorCheck, SelectorVerdict, accept_selectors

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
