{{/*
CEL conditions by which the API server decides whether to call the webhook. They must match every pod that the webhook would
patch or refuse, and as few others as possible: while the webhook is down, matching pods are refused.
*/}}

{{/* The dialects that are switched on anywhere, as a JSON list. */}}
{{- define "cotenant.webhook.dialects" -}}
{{- $configuration := ((.Values.webhook).configuration) | default dict -}}
{{- $dialects := ($configuration.rules).dialects | default list -}}
{{- range $configuration.namespaces -}}
{{- $dialects = concat $dialects (.dialects | default list) -}}
{{- end -}}
{{- $dialects | uniq | sortAlpha | toJson -}}
{{- end -}}

{{/*
" || " and whether a name (the variable in CEL) is one of the dialects that are switched on anywhere: of a resource, or of a pod's
annotation or label; nothing where they have none. A name in the list that ends with "-" or "." stands for all that begin so, and "*" for any text. Takes a dict of root, part and name.
*/}}
{{- define "cotenant.cel.foreign" -}}
{{- $names := get (.root.Files.Get "dialects.json" | fromJson) .part -}}
{{- $found := list -}}
{{- $begins := list -}}
{{- $name := .name -}}
{{- range include "cotenant.webhook.dialects" .root | fromJsonArray -}}
{{- range get $names . -}}
{{- if contains "*" . -}}
{{- $ends := splitList "*" . -}}
{{- $begins = append $begins (printf " || (%s.startsWith('%s') && %s.endsWith('%s'))" $name (first $ends) $name (last $ends)) -}}
{{- else if regexMatch "[-.]$" . -}}
{{- $begins = append $begins (printf " || %s.startsWith('%s')" $name .) -}}
{{- else -}}
{{- $found = append $found (squote .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $found }} || {{ $name }} in [{{ join ", " $found }}]{{ end }}{{ join "" $begins }}
{{- end -}}

{{/* A pod that asks for a share, or has one of our names. Takes a dict of root and pod (the variable in CEL). */}}
{{- define "cotenant.cel.ours" -}}
{{- $name := printf "r.startsWith('cotenant.io/')%s" (include "cotenant.cel.foreign" (dict "root" .root "part" "resources" "name" "r")) -}}
{{- $key := include "cotenant.cel.foreign" (dict "root" .root "part" "podKeys" "name" "k") -}}
(has({{ .pod }}.metadata.annotations) && {{ .pod }}.metadata.annotations.exists(k, k.contains('cotenant.io/'){{ $key }}))
{{- if $key }}
|| (has({{ .pod }}.metadata.labels) && {{ .pod }}.metadata.labels.exists(k, {{ trimPrefix " || " $key }}))
{{- end }}
|| (has({{ .pod }}.spec.volumes) && {{ .pod }}.spec.volumes.exists(v, v.name == 'cotenant' || (has(v.csi) && v.csi.driver == 'cotenant.io')))
|| ({{ .pod }}.spec.containers + (has({{ .pod }}.spec.initContainers) ? {{ .pod }}.spec.initContainers : [])).exists(c, has(c.resources) && (
  (has(c.resources.limits) && c.resources.limits.exists(r, {{ $name }}))
  || (has(c.resources.requests) && c.resources.requests.exists(r, {{ $name }}))))
{{- end -}}

{{/* A pod that names GPUs in a container's environment. */}}
{{- define "cotenant.cel.names-gpus" -}}
(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])).exists(c, has(c.env) && c.env.exists(e, e.name == 'NVIDIA_VISIBLE_DEVICES'))
{{- end -}}

{{/* Whether a guarded annotation of one pod is missing or different in another. Takes a list of both (variables in CEL). */}}
{{- define "cotenant.cel.annotations-differ" -}}
{{- $one := index . 0 -}}{{- $other := index . 1 -}}
(has({{ $one }}.metadata.annotations) && {{ $one }}.metadata.annotations.exists(k,
  (k.contains('cotenant.io/') || k.startsWith('required-plugins.noderesource.dev'))
  && !(has({{ $other }}.metadata.annotations) && k in {{ $other }}.metadata.annotations && {{ $other }}.metadata.annotations[k] == {{ $one }}.metadata.annotations[k])))
{{- end -}}

{{/* Our amounts of all containers, as lists of texts. Takes the pod (the variable in CEL). */}}
{{- define "cotenant.cel.amounts" -}}
({{ . }}.spec.containers + (has({{ . }}.spec.initContainers) ? {{ . }}.spec.initContainers : [])).map(c,
  ['cotenant.io/gpu', 'cotenant.io/gpu-memory', 'cotenant.io/gpu-cores'].map(r,
    has(c.resources) && has(c.resources.limits) && r in c.resources.limits ? string(c.resources.limits[r]) : ''))
{{- end -}}

{{/* A change of what the webhook guards in an existing pod: our annotations and amounts, and debug containers. All other changes of
running pods pass while the webhook is down. A request for the pod itself has no `subResource`, and reading an absent field is an
error, which refuses the pod. */}}
{{- define "cotenant.cel.changed" -}}
request.operation == 'CREATE' || (has(request.subResource) && request.subResource == 'ephemeralcontainers')
|| {{ include "cotenant.cel.annotations-differ" (list "object" "oldObject") }}
|| {{ include "cotenant.cel.annotations-differ" (list "oldObject" "object") }}
|| {{ include "cotenant.cel.amounts" "object" }} != {{ include "cotenant.cel.amounts" "oldObject" }}
{{- end -}}
