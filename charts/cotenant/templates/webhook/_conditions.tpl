{{/*
Conditions in CEL by which the API server decides whether to call the webhook. They must hold for every pod that the
webhook would patch or refuse, and for as few others as possible: while it is down, pods that they hold for are refused.
*/}}

{{/* Resource names of the dialects that are switched on anywhere, as a list in CEL. Those of others are not ours to look at. */}}
{{- define "cotenant.cel.foreign" -}}
{{- $names := dict "ack" (list "aliyun.com/gpu-mem" "aliyun.com/gpu-core.percentage") "metagpu" (list "cnvrg.io/metagpu") -}}
{{- $configuration := .Values.webhook.configuration -}}
{{- $dialects := ($configuration.rules).dialects | default list -}}
{{- range $configuration.namespaces -}}
{{- $dialects = concat $dialects (.dialects | default list) -}}
{{- end -}}
{{- $found := list -}}
{{- range $dialects | uniq | sortAlpha -}}
{{- range get $names . -}}
{{- $found = append $found (squote .) -}}
{{- end -}}
{{- end -}}
[{{ join ", " $found }}]
{{- end -}}

{{/* A pod that asks for a share, or carries a name of ours. Takes a dict of root and pod (the variable in CEL). */}}
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

{{/* A change of what the webhook guards. The kubelets' reports of status, the most frequent of all, change neither. Of a pod itself
the request has no subresource, and asking for one that it has not is an error, which refuses. */}}
{{- define "cotenant.cel.changed" -}}
request.operation == 'CREATE' || (has(request.subResource) && request.subResource == 'ephemeralcontainers')
|| (has(object.metadata.annotations) ? object.metadata.annotations : {}) != (has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {})
|| object.spec.containers != oldObject.spec.containers
|| (has(object.spec.initContainers) ? object.spec.initContainers : []) != (has(oldObject.spec.initContainers) ? oldObject.spec.initContainers : [])
{{- end -}}
