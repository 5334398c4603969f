{{/* The Service to call, with the authority to trust unless cert-manager writes it there. */}}
{{- define "cotenant.webhook.client" -}}
service:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  port: 443
  path: {{ .path }}
{{- with .authority }}
caBundle: {{ . }}
{{- end }}
{{- end -}}

{{/* Fields of every registration. */}}
{{- define "cotenant.webhook.common" -}}
admissionReviewVersions: [v1]
sideEffects: None
matchPolicy: Equivalent
namespaceSelector:
  {{- include "cotenant.webhook.namespaces" . | nindent 2 }}
{{- end -}}

{{/* All namespaces but ours and the excluded ones, whose pods must start while the webhook is down. */}}
{{- define "cotenant.webhook.namespaces" -}}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values:
      - {{ .Release.Namespace }}
      {{- range without ((.Values.webhook).excludedNamespaces | default list) .Release.Namespace }}
      - {{ . }}
      {{- end }}
{{- end -}}
