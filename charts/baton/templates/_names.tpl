{{- /* Of a release a.b the picker is a-b-epp: a Service's name has no dots. */ -}}
{{- define "baton.release" -}}
{{ .Release.Name | replace "." "-" }}
{{- end }}

{{- define "baton.name" -}}
{{ include "baton.release" . }}-epp
{{- end }}

{{- define "baton.pool" -}}
{{- with .Values.router.inferencePool -}}
{{- if .name }}{{ .name }}{{ else if .create }}{{ include "baton.release" $ }}{{ end -}}
{{- end -}}
{{- end }}

{{- define "baton.serviceAccount" -}}
{{- with .Values.serviceAccount -}}
{{- if .name }}{{ .name }}
{{- else if .create }}{{ include "baton.name" $ }}
{{- else if $.Values.rbac.create }}{{ fail "serviceAccount.name: expected an account, since serviceAccount.create is false: without a name every pod of the namespace would get the picker's rights" }}
{{- else }}default
{{- end -}}
{{- end -}}
{{- end }}

{{- define "baton.image" -}}
{{- $i := .Values.router.epp.image -}}
{{- if $i.registry }}{{ $i.registry }}/{{ end }}{{ $i.repository }}:{{ $i.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "baton.selector" -}}
app.kubernetes.io/name: baton
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "baton.meta" -}}
name: {{ include "baton.name" . }}
namespace: {{ .Release.Namespace | quote }}
labels: {{- include "baton.labels" . | nindent 2 }}
{{- end }}

{{- define "baton.labels" -}}
{{ include "baton.selector" . }}
app.kubernetes.io/component: endpoint-picker
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* Whether the gateway carries both legs: "true", or empty. */ -}}
{{- define "baton.twoLegs" -}}
{{- if and (eq .Values.provider.name "istio") .Values.provider.istio.twoLegs.enabled }}true{{ end -}}
{{- end }}

{{- /* The gateway that carries both legs, as an object: the one named, else the only one of the route. */ -}}
{{- define "baton.gatewayOf" -}}
{{- $g := .Values.provider.istio.twoLegs.gateway -}}
{{- if and (not $g.name) .Values.httpRoute.create (eq (len .Values.httpRoute.parentRefs) 1) }}{{ $g = merge (dict) $g (first .Values.httpRoute.parentRefs) }}{{ end -}}
{{- if not $g.name }}
{{- fail "provider.istio.twoLegs.gateway.name: expected the Gateway that leads to the pool, which is to carry both legs (httpRoute.parentRefs tells it if it has one entry); or provider.istio.twoLegs.enabled=false: then a picker that is killed cuts the answers that go through it" }}
{{- end -}}
{{ dict "name" $g.name "namespace" ($g.namespace | default .Release.Namespace) | toYaml }}
{{- end }}

{{- /* The Secret with the key of several replicas' legs. */ -}}
{{- define "baton.legSecret" -}}
{{ .Values.provider.istio.twoLegs.keySecret | default (printf "%s-legs" (include "baton.name" .)) }}
{{- end }}

{{- /* The configuration, with the collector of tracing, and with what two legs need. */ -}}
{{- define "baton.config" -}}
{{- $c := deepCopy .Values.router.epp.config -}}
{{- if include "baton.twoLegs" . }}{{ with .Values.provider.istio.twoLegs -}}
{{- $at := printf "http://%s-legs.%s.svc:%d" (include "baton.name" $) (include "baton.gatewayOf" $ | fromYaml).namespace (int64 .prefillPort) -}}
{{- $_ := set $c "prefill" (merge (default dict $c.prefill) (dict "listener" $at)) -}}
{{- $_ := set $c "leg" (merge (default dict $c.leg) (dict "key_file" "/etc/baton-leg/key")) -}}
{{- end }}{{ end -}}
{{- with .Values.router.tracing }}{{ if .enabled -}}
{{- $at := required "router.tracing.otelExporterEndpoint: expected an OTLP collector, such as http://collector:4317, since router.tracing.enabled is true" .otelExporterEndpoint -}}
{{- $_ := set $c "trace" (merge (dict "endpoint" (regexReplaceAll "^https?://" $at "") "insecure" (hasPrefix "http://" $at)) (default dict $c.trace)) -}}
{{- end }}{{ end -}}
{{- if $c }}{{ toYaml $c }}{{ end -}}
{{- end }}

{{- /* Numbers of values are floating-point: 1000000 is to be that, and not 1e+06. */ -}}
{{- define "baton.flag" -}}
{{- if and (kindIs "float64" .) (eq (float64 (int64 .)) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end }}
