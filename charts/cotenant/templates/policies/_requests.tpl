{{/*
CEL that reads and patches pods for admission.mode policy. It keeps to our own resources, for src/request and webhook/mutate.ts read
the rest; what the two have in common is the same here and there (test/cluster/chart/patch.ts).
*/}}

{{/* Settings that CEL does not keep, as a list of paths; the mode is refused with them. */}}
{{- define "cotenant.patch.unkept" -}}
{{- $configuration := .Values.webhook.configuration -}}
{{- $paths := list -}}
{{- range tuple "namespaces" "pools" -}}
{{- if get $configuration . }}{{ $paths = append $paths (printf "webhook.configuration.%s" .) }}{{ end -}}
{{- end -}}
{{- $kept := list "enforcement" "driverCapabilities" "memoryIsolation" "placements" "computePolicies" "allowPtrace" -}}
{{- range $name, $value := $configuration.rules -}}
{{- if and (or $value (kindIs "bool" $value)) (not (has $name $kept)) }}{{ $paths = append $paths (printf "webhook.configuration.rules.%s" $name) }}{{ end -}}
{{- end -}}
{{- join ", " $paths -}}
{{- end -}}

{{/* Names in CEL, as a list. Takes a list. */}}
{{- define "cotenant.cel.list" -}}
{{ . | toJson | replace "\"" "'" }}
{{- end -}}

{{/* Variables: each container with a share, and those whose amounts do not make one. An amount that is not there is 0, and one that is
no whole number -1. */}}
{{- define "cotenant.cel.requests" -}}
{{- $amount := "%[1]s in e.c.resources.limits ? (quantity(string(e.c.resources.limits[%[1]s])).isInteger() && quantity(string(e.c.resources.limits[%[1]s])).asInteger() > 0 ? quantity(string(e.c.resources.limits[%[1]s])).asInteger() : -1) : %[2]s" -}}
- name: every
  expression: |-
    (has(object.spec.initContainers) ? object.spec.initContainers.transformList(i, c, {
      'at': dyn('/spec/initContainers/' + string(i)), 'c': dyn(c),
      'kind': dyn(has(c.restartPolicy) && c.restartPolicy == 'Always' ? 'sidecar' : 'init')}) : [])
    + object.spec.containers.transformList(i, c, {'at': dyn('/spec/containers/' + string(i)), 'c': dyn(c), 'kind': dyn('app')})
- name: requests
  expression: |-
    variables.every.filter(e, has(e.c.resources) && has(e.c.resources.limits)
      && e.c.resources.limits.exists(r, r in ['cotenant.io/gpu', 'cotenant.io/gpu-memory', 'cotenant.io/gpu-cores'])).map(e, {
        'name': dyn(e.c.name), 'kind': e.kind,
        'gpus': dyn({{ printf $amount "'cotenant.io/gpu'" "1" }}),
        'bytes': dyn({{ printf $amount "'cotenant.io/gpu-memory'" "0" }}),
        'cores': dyn({{ printf $amount "'cotenant.io/gpu-cores'" "0" }})})
- name: wrong
  expression: |-
    variables.requests.filter(s, s.gpus < 1 || s.gpus > 64 || s.bytes < 0 || s.bytes > 1125899906842624 || s.bytes % (s.gpus * 1048576) != 0
      || s.cores < 0 || s.cores > 100 * s.gpus || s.cores % s.gpus != 0).map(s, s.name)
{{- end -}}

{{/* What the webhook would read, remove or warn of, and CEL does not: refused, so that no pod runs otherwise than it asks. */}}
{{- define "cotenant.patch.validations" -}}
{{- $rules := .Values.webhook.configuration.rules | default dict -}}
{{- $classes := list -}}
{{- with .Values.webhook.configuration.runtimeClassName }}{{ $classes = prepend ($.Values.webhook.configuration.allowedRuntimeClasses | default list) . }}{{ end -}}
- expression: "variables.wrong.size() == 0"
  messageExpression: |-
    'spec.containers: ' + variables.wrong.join(', ') + ' asks for amounts that make no share; write cotenant.io/gpu: 1 to 64, and as totals over these GPUs cotenant.io/gpu-memory in whole MiB of each, cotenant.io/gpu-cores in whole percent of each'
- expression: |-
    variables.every.all(e, !has(e.c.resources) || [has(e.c.resources.limits) ? e.c.resources.limits : {}].all(l, l.all(r,
      !r.startsWith('cotenant.io/') || r in ['cotenant.io/gpu', 'cotenant.io/gpu-memory', 'cotenant.io/gpu-cores'])))
  message: >-
    resources.limits: there are cotenant.io/gpu, cotenant.io/gpu-memory and cotenant.io/gpu-cores; no node has other resources of Cotenant
- expression: |-
    variables.names.size() == 0 || variables.every.all(e, !has(e.c.resources) || !has(e.c.resources.limits) || e.c.resources.limits.all(r,
      !(r == 'nvidia.com/gpu' || r == 'nvidia.com/gpu.shared' || r.startsWith('nvidia.com/mig-'))
      || quantity(string(e.c.resources.limits[r])).compareTo(quantity('0')) == 0))
  message: >-
    resources.limits: NVIDIA's device plugin does not run on nodes with shares; leave its resources out, or write cotenant.io/gpu: 1 for a whole GPU
- expression: |-
    variables.names.size() == 0 || variables.annotations.all(k, !k.startsWith('cotenant.io/') || k == 'cotenant.io/request'
      || (k == 'cotenant.io/placement' && variables.annotations[k] in {{ include "cotenant.cel.list" ($rules.placements | default (list "binpack" "spread" "fragmentation" "topology")) }})
      || (k == 'cotenant.io/compute-policy' && variables.annotations[k] in {{ include "cotenant.cel.list" ($rules.computePolicies | default (list "average" "preemptive" "weighted" "fixed" "soft")) }}))
  message: >-
    metadata.annotations: without the webhook (admission.mode policy) a pod chooses cotenant.io/placement and cotenant.io/compute-policy only, of the values that are allowed; leave the others out
- expression: |-
    variables.shares.all(c, !has(c.env) || c.env.all(e, !e.name.matches('^(CUDA_MPS_|NVIDIA_GPU_MEMORY_|COTENANT_)|^(NVIDIA_MIG_CONFIG_DEVICES|NVIDIA_MIG_MONITOR_DEVICES|LD_AUDIT|CUDA_DISABLE_CONTROL|CUDA_REDIRECT|CUDA_DEVICE_MEMORY_SHARED_CACHE|ENABLE_CUDA_HOOKS|DISABLE_GPU_LIMITER|CGPU_DISABLE)$')))
  message: >-
    env: a variable would bypass the limits of a container with a share of a GPU; leave CUDA_MPS_*, NVIDIA_GPU_MEMORY_*, NVIDIA_MIG_*_DEVICES, LD_AUDIT and those that switch a sharing system off out
  reason: Forbidden
- expression: |-
    variables.names.size() == 0 || !((has(object.spec.os) && object.spec.os.name == 'windows')
      || (has(object.spec.securityContext) && has(object.spec.securityContext.windowsOptions)
        && [object.spec.securityContext.windowsOptions].exists(w, has(w.gmsaCredentialSpecName) || has(w.gmsaCredentialSpec) || has(w.runAsUserName) || has(w.hostProcess)))
      || variables.every.exists(e, has(e.c.securityContext) && has(e.c.securityContext.windowsOptions)
        && [e.c.securityContext.windowsOptions].exists(w, has(w.gmsaCredentialSpecName) || has(w.gmsaCredentialSpec) || has(w.runAsUserName) || has(w.hostProcess)))
      || ['kubernetes.io/os', 'beta.kubernetes.io/os'].exists(l,
        (has(object.spec.nodeSelector) && l in object.spec.nodeSelector && object.spec.nodeSelector[l] == 'windows')
        || (has(object.spec.affinity) && has(object.spec.affinity.nodeAffinity) && has(object.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution)
          && object.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.all(t, has(t.matchExpressions)
            && t.matchExpressions.exists(m, m.key == l && m.operator == 'In' && has(m.values) && m.values.all(v, v == 'windows'))))))
  message: >-
    spec: os, nodeSelector, nodeAffinity or securityContext.windowsOptions make it a pod of Windows, and Cotenant shares no GPUs with those
{{- if $classes }}
- expression: "variables.names.size() == 0 || !has(object.spec.runtimeClassName) || object.spec.runtimeClassName in {{ include "cotenant.cel.list" $classes }}"
  message: >-
    spec.runtimeClassName: is not one that gives containers their GPU; leave it out or write {{ join " or " $classes }}
  reason: Forbidden
{{- end }}
{{- end -}}
