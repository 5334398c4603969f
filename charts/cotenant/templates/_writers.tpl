{{/*
Who writes which of our names, as the API server calls them. The webhook's configuration and the policies take them from
here alone.
*/}}

{{/* Grants, in the Binding, and of pods whose memory changes. */}}
{{- define "cotenant.writer.scheduler" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "cotenant.scheduler.name" . }}
{{- end -}}

{{/* Its Node's GPUs and amounts. */}}
{{- define "cotenant.writer.agent" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "cotenant.agent.name" . }}
{{- end -}}

{{/* Our annotations on pods that exist: a list as JSON, which is one in YAML and in CEL, too. */}}
{{- define "cotenant.writers.pods" -}}
{{- $writers := ((.Values.webhook).configuration).annotationWriters | default list -}}
{{- concat $writers (list (include "cotenant.writer.agent" .) (include "cotenant.writer.scheduler" .)) | uniq | toJson -}}
{{- end -}}
