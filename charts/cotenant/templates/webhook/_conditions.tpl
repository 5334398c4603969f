{{/*
CEL conditions by which the API server decides whether to call the webhook. They must match every pod that the webhook would
patch or refuse, and as few others as possible: while the webhook is down, matching pods are refused.
*/}}

{{/* Resource names of the dialects that are switched on anywhere, as a list in CEL. */}}
{{- define "cotenant.cel.foreign" -}}
{{- $names := .Files.Get "dialects.json" | fromJson -}}
{{- $configuration := .Values.webhook.configuration -}}
{{- $dialects := ($configuration.rules).dialects | default list -}}
{{- range $configuration.namespaces -}}
{{- $dialects = concat $dialects (.dialects | default list) -}}
{{- end -}}
{{- $found := list -}}
{{- range $dialects | uniq | sortAlpha -}}
{{- if not (hasKey $names .) -}}
{{- fail (printf "webhook.configuration: dialects: there is no %q; known are %s" . (keys $names | sortAlpha | join ", ")) -}}
{{- end -}}
{{- range get $names . -}}
{{- $found = append $found (squote .) -}}
{{- end -}}
{{- end -}}
[{{ join ", " $found }}]
{{- end -}}

{{/* A pod that asks for a share, or has one of our names. Takes a dict of root and pod (the variable in CEL). */}}
{{- define "cotenant.cel.ours" -}}
{{- $name := printf "r.startsWith('cotenant.io/') || r in %s" (include "cotenant.cel.foreign" .root) -}}
(has({{ .pod }}.metadata.annotations) && {{ .pod }}.metadata.annotations.exists(k, k.contains('cotenant.io/')))
|| (has({{ .pod }}.spec.volumes) && {{ .pod }}.spec.volumes.exists(v, v.name == 'cotenant' || (has(v.csi) && v.csi.driver == 'cotenant.io')))
|| ({{ .pod }}.spec.containers + (has({{ .pod }}.spec.initContainers) ? {{ .pod }}.spec.initContainers : [])).exists(c, has(c.resources) && (
  (has(c.resources.limits) && c.resources.limits.exists(r, {{ $name }}))
  || (has(c.resources.requests) && c.resources.requests.exists(r, {{ $name }}))))
{{- end -}}

{{/* A pod that names GPUs in a container's environment. */}}
{{- define "cotenant.cel.names-gpus" -}}
(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])).exists(c, has(c.env) && c.env.exists(e, e.name == 'NVIDIA_VISIBLE_DEVICES'))
{{- end -}}

{{/* A change of annotations, containers or debug containers. The kubelets' status updates, the most frequent ones, change none of
them. A request for the pod itself has no `subResource`, and reading an absent field is an error, which refuses the pod. */}}
{{- define "cotenant.cel.changed" -}}
request.operation == 'CREATE' || (has(request.subResource) && request.subResource == 'ephemeralcontainers')
|| (has(object.metadata.annotations) ? object.metadata.annotations : {}) != (has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {})
|| object.spec.containers != oldObject.spec.containers
|| (has(object.spec.initContainers) ? object.spec.initContainers : []) != (has(oldObject.spec.initContainers) ? oldObject.spec.initContainers : [])
{{- end -}}
