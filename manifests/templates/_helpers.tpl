{{/* A file beside the templates, in the namespaces of the release and of the plugin. */}}
{{- define "kopf-dra.file" -}}
{{- .root.Files.Get .path | replace "dra-system" "<release>" | replace "dra-plugins" .root.Values.plugin.namespace | replace "<release>" .root.Release.Namespace -}}
{{- end -}}

{{/* What operator and plugin have in common: changes the workload in place. */}}
{{- define "kopf-dra.workload" -}}
{{- $pod := .workload.spec.template.spec -}}
{{- $container := first $pod.containers -}}
{{- $image := .root.Values.image -}}
{{- $_ := set $container "image" (printf "%s:%s" $image.repository (default .root.Chart.AppVersion $image.tag)) -}}
{{- with $image.pullPolicy }}{{ $_ := set $container "imagePullPolicy" . }}{{ end -}}
{{- with $image.pullSecrets -}}
{{- $secrets := list -}}
{{- range . }}{{ $secrets = append $secrets (dict "name" .) }}{{ end -}}
{{- $_ := set $pod "imagePullSecrets" $secrets -}}
{{- end -}}
{{- with .values.resources }}{{ $_ := set $container "resources" . }}{{ end -}}
{{- with .values.nodeSelector }}{{ $_ := set $pod "nodeSelector" . }}{{ end -}}
{{- with .values.podAnnotations }}{{ $_ := set $.workload.spec.template.metadata "annotations" . }}{{ end -}}
{{- end -}}
