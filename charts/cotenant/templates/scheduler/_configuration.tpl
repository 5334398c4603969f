{{/*
kube-scheduler's configuration. It calls the extender only for pods with our resources. It does not count memory and compute
itself, so that the reasons of Pending pods come from the extender, which names GPUs; it does count containers per node.
*/}}
{{- define "cotenant.scheduler.configuration" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceLock: leases
  resourceNamespace: {{ .Release.Namespace }}
  resourceName: {{ include "cotenant.scheduler.name" . }}
  leaseDuration: 15s
  renewDeadline: 10s
  retryPeriod: 2s
profiles:
  - schedulerName: {{ include "cotenant.scheduler.profile" . }}
    # kube-scheduler's default stops at a sample of the nodes that fit: the best node would often not be in it.
    percentageOfNodesToScore: 100
extenders:
  - urlPrefix: http://127.0.0.1:{{ .Values.scheduler.port }}
    filterVerb: filter
    prioritizeVerb: prioritize
    preemptVerb: preempt
    bindVerb: bind
    # Above the sum of what all plugins of kube-scheduler can give, so that GPUs decide how pods are packed.
    weight: {{ .Values.scheduler.weight }}
    enableHTTPS: false
    httpTimeout: 20s
    nodeCacheCapable: true
    ignorable: false
    managedResources:
      - name: cotenant.io/gpu
        ignoredByScheduler: false
      - name: cotenant.io/gpu-memory
        ignoredByScheduler: true
      - name: cotenant.io/gpu-cores
        ignoredByScheduler: true
{{- end -}}
