"""Kinds defined at run time, from their definition to their end."""

from __future__ import annotations

from command import BlockingKubectl

DEFINITION = """
    apiVersion: apiextensions.k8s.io/v1
    kind: CustomResourceDefinition
    metadata: {name: widgets.example.com}
    spec:
      group: example.com
      scope: Namespaced
      names: {plural: widgets, singular: widget, kind: Widget, shortNames: [wg]}
      versions:
      - name: v1
        served: true
        storage: true
        subresources: {status: {}}
        additionalPrinterColumns:
        - {name: Size, type: integer, jsonPath: .spec.size}
        - {name: Mode, type: string, jsonPath: .spec.mode, priority: 1}
        schema:
          openAPIV3Schema:
            type: object
            properties:
              spec:
                type: object
                description: What the widget should be.
                required: [size]
                properties:
                  size: {type: integer, minimum: 1, description: How big.}
                  mode: {type: string, enum: [fast, slow], default: slow}
                  parts:
                    type: array
                    x-kubernetes-list-type: map
                    x-kubernetes-list-map-keys: [id]
                    items:
                      type: object
                      required: [id]
                      properties: {id: {type: string}, count: {type: integer}}
              status: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""


def widget(spec: str) -> str:
    return f"apiVersion: example.com/v1\nkind: Widget\nmetadata: {{name: w}}\nspec: {spec}\n"


def test_the_life_of_a_custom_resource(kubectl: BlockingKubectl) -> None:
    kubectl("create", "-f", "-", stdin=DEFINITION)
    kubectl("wait", "--for=condition=Established", "crd/widgets.example.com", "--timeout=10s")

    assert "widget.example.com/w created" in kubectl("apply", "-f", "-", stdin=widget("{size: 3}"))
    assert kubectl.rows("wg", "-o", "wide")[0][:3] == ["w", "3", "slow"]
    assert "How big." in kubectl("explain", "widget.spec.size")
    assert "widget.example.com/w configured" in kubectl("apply", "-f", "-", stdin=widget("{size: 4, mode: fast}"))
    kubectl("patch", "widget", "w", "--subresource=status", "--type=merge", "-p", '{"status": {"any": {"thing": 1}}}')
    found = kubectl.read("widget", "w")
    assert (found["spec"], found["status"]) == ({"size": 4, "mode": "fast"}, {"any": {"thing": 1}})

    refused = kubectl("apply", "-f", "-", stdin=widget("{size: 0, mode: odd}"), code=1)
    assert 'The Widget "w" is invalid' in refused
    assert "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1" in refused
    assert 'spec.mode: Unsupported value: "odd": supported values: "fast", "slow"' in refused
    assert 'unknown field "spec.colour"' in kubectl("apply", "-f", "-", stdin=widget("{size: 1, colour: red}"), code=1)

    one = ("apply", "--server-side", "--field-manager=one", "--force-conflicts", "-f", "-")
    kubectl(*one, stdin=widget("{size: 4, parts: [{id: a, count: 1}]}"))
    other = ("apply", "--server-side", "--field-manager=other", "-f", "-")
    kubectl(*other, stdin=widget("{size: 4, parts: [{id: b}]}"))
    assert [part["id"] for part in kubectl.read("widget", "w")["spec"]["parts"]] == ["a", "b"]
    conflict = kubectl(*other, stdin=widget("{size: 4, parts: [{id: a, count: 2}]}"), code=1)
    assert 'conflict with "one": .spec.parts[id="a"].count' in conflict

    kubectl("delete", "crd", "widgets.example.com")
    assert "NotFound" in kubectl("get", "widgets", code=1), "known from kubectl's own cache, but gone"
