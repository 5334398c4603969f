{{/*
Names, labels and the parts that more than one object repeats. What the program is started with is here too, so that a
change of its command line is a change of one file.
*/}}

{{/* What the names of all objects begin with. Services take no other names than these (RFC 1035). */}}
{{- define "cotenant.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $usual := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- $full := default $usual .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $full) -}}
{{- fail (printf "no Service can be named %s-agent: set fullnameOverride to a name of a-z, 0-9 and \"-\" that begins with a letter" $full) -}}
{{- end -}}
{{- $full -}}
{{- end -}}

{{- define "cotenant.agent.name" -}}{{ include "cotenant.fullname" . }}-agent{{- end -}}
{{- define "cotenant.webhook.name" -}}{{ include "cotenant.fullname" . }}-webhook{{- end -}}
{{- define "cotenant.scheduler.name" -}}{{ include "cotenant.fullname" . }}-scheduler{{- end -}}
{{- define "cotenant.extender.name" -}}{{ include "cotenant.fullname" . }}-extender{{- end -}}
{{/* The ConfigMap of live rules, which administrators write. */}}
{{- define "cotenant.webhook.rules.name" -}}{{ include "cotenant.webhook.name" . }}-rules{{- end -}}

{{/* The schedulerName of pods, which the webhook writes. */}}
{{- define "cotenant.scheduler.profile" -}}
{{- ((.Values.webhook).configuration).schedulerName | default "cotenant-scheduler" -}}
{{- end -}}

{{/* What a selector selects by; never changes over upgrades. Takes a dict of root and component. */}}
{{- define "cotenant.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "cotenant.labels.own" -}}
{{ include "cotenant.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
cotenant.io/component: {{ .component }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Takes a dict of root and component, and of a pod its podLabels as more, which win over commonLabels. */}}
{{- define "cotenant.labels" -}}
{{- $own := include "cotenant.labels.own" . -}}
{{- $more := merge (dict) (.more | default dict) (.root.Values.commonLabels | default dict) -}}
{{- range $key, $_ := $more -}}
{{- if hasKey (fromYaml $own) $key }}{{ fail (printf "commonLabels, podLabels: the chart sets %s itself; leave it out" $key) }}{{ end -}}
{{- end -}}
{{ $own }}
{{- with $more }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Takes settings of ports by name, whose programs are in one pod. */}}
{{- define "cotenant.distinct" -}}
{{- $seen := dict -}}
{{- range $name, $port := . -}}
{{- $text := toString $port -}}
{{- if and $port (hasKey $seen $text) }}{{ fail (printf "%s and %s are both %s: programs of one pod cannot share a port" (get $seen $text) $name $text) }}{{ end -}}
{{- $_ := set $seen $text $name -}}
{{- end -}}
{{- end -}}

{{- define "cotenant.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* The user of the image. */}}
{{- define "cotenant.user" -}}65532{{- end -}}

{{/* A container that may do nothing but compute, read what is mounted, and talk to the network. */}}
{{- define "cotenant.restricted" -}}
{{ include "cotenant.restricted.as" (include "cotenant.user" .) }}
{{- end -}}

{{/* The same, as the user that it takes. */}}
{{- define "cotenant.restricted.as" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Folder of the socket on which the node container tells the exporter container what it has seen. */}}
{{- define "cotenant.agent.snapshots" -}}/run/cotenant{{- end -}}

{{/* The exporter container's own user: images of others, too, run as the image's (distroless' "nonroot"). */}}
{{- define "cotenant.agent.exporter.user" -}}59837{{- end -}}

{{/* Name of the Secret with the certificate of the page; empty: plain HTTP. */}}
{{- define "cotenant.agent.tls" -}}{{ (.Values.agent.exporter.tls).secretName | default "" }}{{- end -}}

{{/* The service account whose tokens open the data of the status pages; empty: they are open. Absent in older values: on. */}}
{{- define "cotenant.agent.statusReader" -}}
{{- if ne (toString .Values.agent.exporter.statusTokens) "false" }}{{ include "cotenant.fullname" . }}-status-reader{{ end }}
{{- end -}}

{{- define "cotenant.agent.node.args" -}}
- agent
- --config=/etc/cotenant/agent/configuration.yaml
- --set=page.socket={{ include "cotenant.agent.snapshots" . }}/snapshots.sock
- --set=page.socketUser={{ include "cotenant.agent.exporter.user" . }}
- --set=stateFolder={{ .Values.agent.stateDirectory }}
- --set=kubernetes.enabled=true
- --set=kubernetes.nodeName=$(NODE_NAME)
- --set=kubernetes.podResources={{ .Values.kubelet.root }}/pod-resources/kubelet.sock
{{- if (.Values.csi).enabled }}
- --set=kubernetes.pods=true
- --set=kubernetes.slots={{ .Values.csi.slots | default "status" }}
- --set=kubernetes.kubeletRoot={{ .Values.kubelet.root }}
- --set=kubernetes.nriSocket={{ if (.Values.nri).enabled }}{{ .Values.nri.socket }}{{ end }}
{{- with (.Values.nri).cdiKind }}
- --set=kubernetes.cdiKind={{ . }}
{{- end }}
- --set=kubernetes.cdiFolders={{ if (.Values.nri).enabled }}{{ join "," .Values.nri.cdiFolders }}{{ end }}
{{- end }}
{{- if .Values.agent.exporter.tokenReview }}
- --set=page.tokenReview=true
{{- end }}
{{- if include "cotenant.agent.statusReader" . }}
- --set=page.statusTokens=true
{{- end }}
{{- with .Values.agent.node.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "cotenant.agent.exporter.args" -}}
- exporter
- --config=/etc/cotenant/agent/configuration.yaml
- --set=page.socket={{ include "cotenant.agent.snapshots" . }}/snapshots.sock
- "--set=host=::"
- --set=port={{ .Values.agent.exporter.port }}
- --set=kubernetes.enabled=true
- --set=kubernetes.nodeName=$(NODE_NAME)
{{- if include "cotenant.agent.statusReader" . }}
- --set=page.statusTokens=true
{{- end }}
{{- if include "cotenant.agent.tls" . }}
- --set=page.certFile=/etc/cotenant/tls/tls.crt
- --set=page.keyFile=/etc/cotenant/tls/tls.key
{{- end }}
{{- with .Values.agent.exporter.bearerToken }}{{ if .secretName }}
- --set=page.bearerTokenFile=/etc/cotenant/page/token
{{- end }}{{ end }}
{{- if .Values.agent.exporter.tokenReview }}
- --set=page.tokenReview=true
{{- end }}
{{- with .Values.agent.exporter.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The flags of a daemon's log, from its values; each begins on a new line. */}}
{{- define "cotenant.log.args" -}}
{{- range $name, $value := .log }}
- --log-{{ $name }}={{ $value }}
{{- end }}
{{- end -}}

{{- define "cotenant.webhook.args" -}}
- webhook
- --config=/etc/cotenant/webhook/configuration.yaml
{{- if eq .Values.webhook.certificate.source "self" }}
- --secret={{ .Release.Namespace }}/{{ include "cotenant.webhook.certificate.name" . }}
- --service={{ include "cotenant.webhook.name" . }}
- --registration={{ include "cotenant.webhook.name" . }}
{{- else }}
- --cert=/etc/cotenant/certificate/tls.crt
- --key=/etc/cotenant/certificate/tls.key
{{- end }}
{{- if .Values.webhook.liveRules }}
- --live-rules={{ .Release.Namespace }}/{{ include "cotenant.webhook.rules.name" . }}
{{- end }}
{{- if include "cotenant.webhook.dialects" . | fromJsonArray }}
- --foreign-systems
{{- end }}
- --port={{ .Values.webhook.port }}
- --health-port={{ .Values.webhook.healthPort }}
- --drain={{ .Values.webhook.drainSeconds }}
{{- include "cotenant.log.args" .Values.webhook }}
{{- with .Values.webhook.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "cotenant.scheduler.args" -}}
- scheduler
- --lease={{ .Release.Namespace }}/{{ include "cotenant.scheduler.name" . }}
{{- if (.Values.scheduler.service).enabled }}
- --lease-holder=self
- --host=0.0.0.0
- --cert=/etc/cotenant/extender/server/tls.crt
- --key=/etc/cotenant/extender/server/tls.key
- --client-ca=/etc/cotenant/extender/client/ca.crt
{{- else }}
- --host=127.0.0.1
{{- if gt (int .Values.scheduler.weight) 120 }}
{{- /* More than all plugins of kube-scheduler can give decides alone: they need not score the other nodes. */}}
- --most-nodes=1
{{- end }}
{{- end }}
- --port={{ .Values.scheduler.port }}
- --health-port={{ .Values.scheduler.healthPort }}
- --placement={{ .Values.scheduler.placement }}
{{- with .Values.scheduler.overcommittedAfterSeconds }}
- --overcommitted-after={{ . }}
{{- end }}
{{- include "cotenant.log.args" .Values.scheduler }}
{{- with .Values.scheduler.extender.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* kube-scheduler of the cluster's own version, as its API server tells it: a newer one may not work with it. */}}
{{- define "cotenant.scheduler.image" -}}
{{- $version := regexFind "v[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version -}}
{{- with .Values.scheduler.kubeScheduler.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $version }}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cotenant.webhook.certificate.name" -}}
{{- if eq .Values.webhook.certificate.source "secret" -}}
{{- required "webhook.certificate.secretName: name the Secret of type kubernetes.io/tls" .Values.webhook.certificate.secretName -}}
{{- else if eq .Values.webhook.certificate.source "self" -}}
{{- include "cotenant.webhook.name" . }}-keys
{{- else -}}
{{- include "cotenant.webhook.name" . }}-certificate
{{- end -}}
{{- end -}}
