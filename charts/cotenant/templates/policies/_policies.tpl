{{/*
Parts of ValidatingAdmissionPolicies. webhook/volume.ts, webhook/validate-pod.ts and webhook/environment.ts decide what a patched
pod looks like; these CEL expressions check the same, for pods that did not pass the webhook.
*/}}

{{/* Policies that require the webhook's patch: without the webhook no pod could pass them. */}}
{{- define "cotenant.policies.pods" -}}
{{- if and (.Values.policies).enabled (.Values.webhook).enabled }}true{{ end -}}
{{- end -}}

{{/* The policy that patches pods in place of the webhook. */}}
{{- define "cotenant.policies.patch" -}}
{{- if and (.Values.webhook).enabled (eq (.Values.admission).mode "policy") }}true{{ end -}}
{{- end -}}

{{/* Whether the webhook itself runs. */}}
{{- define "cotenant.webhook.served" -}}
{{- if and (.Values.webhook).enabled (not (include "cotenant.policies.patch" .)) }}true{{ end -}}
{{- end -}}

{{/* A mirror pod: refusing it would only hide a static pod that runs anyway, without a share. */}}
{{- define "cotenant.policies.not-mirror" -}}
- name: is-not-the-image-of-a-static-pod
  expression: |-
    !(has(object.metadata.annotations) && 'kubernetes.io/config.mirror' in object.metadata.annotations
    && request.userInfo.username.startsWith('system:node:') && 'system:nodes' in request.userInfo.groups)
{{- end -}}

{{/* The policy on agents' writes to Nodes. */}}
{{- define "cotenant.policies.nodes" -}}
{{- if and (.Values.policies).enabled .Values.agent.enabled (.Values.csi).enabled }}true{{ end -}}
{{- end -}}

{{/* The policies on grants. */}}
{{- define "cotenant.policies.grants" -}}
{{- if or (include "cotenant.policies.pods" .) (include "cotenant.policies.nodes" .) }}true{{ end -}}
{{- end -}}

{{/* Head of a policy's object. Takes a dict of root, kind and name. */}}
{{- define "cotenant.policy.head" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: {{ .kind }}
metadata:
  name: {{ include "cotenant.fullname" .root }}-{{ .name }}
  labels: {{- include "cotenant.labels" (dict "root" .root "component" "policies") | nindent 4 }}
{{- end -}}

{{/* Takes a dict of root and name. */}}
{{- define "cotenant.policy.binding" -}}
{{ include "cotenant.policy.head" (dict "root" .root "kind" "ValidatingAdmissionPolicyBinding" "name" .name) }}
spec:
  policyName: {{ include "cotenant.fullname" .root }}-{{ .name }}
  validationActions: [Deny]
{{- end -}}

{{- define "cotenant.policy.namespaces" -}}
namespaceSelector:
  {{- include "cotenant.webhook.namespaces" . | nindent 2 }}
{{- end -}}

{{- define "cotenant.cel.annotations" -}}
has({{ . }}.metadata.annotations) ? {{ . }}.metadata.annotations : {}
{{- end -}}

{{/* An annotation key that only the scheduler and operators write. */}}
{{- define "cotenant.cel.grant-key" -}}
(k in ['cotenant.io/grant', 'cotenant.io/compute', 'cotenant.io/memory', 'cotenant.io/enforcement-override'] || k.startsWith('gpu-uuids.cotenant.io/'))
{{- end -}}

{{/*
Privileged, or a capability with which a container could escape by mounting, loading, tracing or creating device nodes, in any
spelling. Takes a list of names.
*/}}
{{- define "cotenant.cel.privileged" -}}
has(c.securityContext) && ((has(c.securityContext.privileged) && c.securityContext.privileged)
|| (has(c.securityContext.capabilities) && has(c.securityContext.capabilities.add)
    && c.securityContext.capabilities.add.exists(a, a.upperAscii().replace('CAP_', '') in [{{ join ", " . }}])))
{{- end -}}

{{/* Mounts that NVIDIA's toolkit reads as a list of devices. Paths are compared as a runtime resolves them. */}}
{{- define "cotenant.cel.device-list" -}}
has(c.volumeMounts) && c.volumeMounts.exists(m, ('/' + m.mountPath + '/').matches('^{{ include "cotenant.cel.slash" . }}(var{{ include "cotenant.cel.slash" . }})?run{{ include "cotenant.cel.slash" . }}nvidia-container-devices/'))
{{- end -}}

{{/* A regular expression for the separator of two names in a path. */}}
{{- define "cotenant.cel.slash" -}}
/([.]?/)*
{{- end -}}

{{/* A path at or below the ones through which limits reach a container, or one with ".." in it. Takes the path in CEL. */}}
{{- define "cotenant.cel.reserved" -}}
{{- $slash := include "cotenant.cel.slash" . -}}
('/' + {{ . }} + '/').matches('^{{ $slash }}((var{{ $slash }})?run{{ $slash }}cotenant|etc{{ $slash }}ld[.]so[.]preload)/|/[.][.]/')
{{- end -}}
