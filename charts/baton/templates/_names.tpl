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
{{- if $i.registry }}{{ $i.registry }}/{{ end }}{{ $i.repository }}:{{ $i.tag | default .Chart.AppVersion }}{{ with $i.digest }}@{{ . }}{{ end }}
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

{{- /* What is made in the gateway's namespace is called after the release and its namespace:
other releases may have theirs there, too. A sum stands in names that are long, or that two
releases could both have (a-epp of b, a of epp-b). */ -}}
{{- define "baton.inGateways" -}}
{{- $name := printf "%s-%s" (include "baton.name" .) .Release.Namespace -}}
{{- if or (gt (len $name) 58) (gt (len (splitList "epp" $name)) 2) -}}
{{- $name = printf "%s-%s" ($name | trunc 49 | trimSuffix "-") (printf "%s/%s" .Release.Namespace .Release.Name | sha256sum | trunc 8) -}}
{{- end -}}
{{ $name }}
{{- end }}

{{- /* Where the pickers send the prefill legs that they begin themselves: at most 63 characters. */ -}}
{{- define "baton.legs" -}}
{{ include "baton.inGateways" . }}-legs
{{- end }}

{{- /* Labels or annotations of a user's beside the chart's own: the value's name, the own ones, the user's. */ -}}
{{- define "baton.also" -}}
{{- $own := index . 1 | fromYaml -}}
{{- range $key, $_ := index . 2 }}{{ if hasKey $own $key }}
{{- fail (printf "%s: the chart sets %s itself, and needs what it sets: expected other keys" (index $ 0) $key) }}
{{- end }}{{ end -}}
{{- with index . 2 }}{{ toYaml . }}{{ end -}}
{{- end }}

{{- /* Entries of a user's list: the value's name, the names of the chart's own entries, the user's. */ -}}
{{- define "baton.more" -}}
{{- $own := index . 1 -}}
{{- range $at, $entry := index . 2 }}{{ if has $entry.name $own }}
{{- fail (printf "%s[%d].name: the chart has %s itself: expected another name" (index $ 0) $at $entry.name) }}
{{- end }}{{ end -}}
{{- with index . 2 }}{{ toYaml . }}{{ end -}}
{{- end }}

{{- define "baton.podLabels" -}}
{{ include "baton.selector" . }}
app.kubernetes.io/component: endpoint-picker
{{- if eq .Values.provider.name "istio" }}
# The gateway asks with the picker's own TLS, which a sidecar would not let through.
sidecar.istio.io/inject: "false"
istio.io/dataplane-mode: none
{{- end }}
{{- end }}

{{- /* The Secret of yours with the replicas' key; empty: the chart makes one. The second value had it
while two legs alone needed a key. */ -}}
{{- define "baton.keySecret" -}}
{{ .Values.router.epp.keySecret | default .Values.provider.istio.twoLegs.keySecret }}
{{- end }}

{{- /* The Secret with the replicas' key. Releases have it by this name, and an upgrade keeps their key. */ -}}
{{- define "baton.legSecret" -}}
{{ include "baton.keySecret" . | default (printf "%s-legs" (include "baton.name" .)) }}
{{- end }}

{{- /* The Service whose pods are the replicas: at most 63 characters. */ -}}
{{- define "baton.replicas" -}}
{{ include "baton.name" . }}-pods
{{- end }}

{{- /* The configuration, with what replicas and two legs need, and with the collector of tracing. What a user
says wins, also if it is empty; what the chart says by a flag or a value of its own is refused here, in
baton.conflicts. */ -}}
{{- define "baton.config" -}}
{{- $c := deepCopy .Values.router.epp.config -}}
{{- $leg := dict "key_file" "/etc/baton-leg/key" "replicas_service" (include "baton.replicas" .) -}}
{{- $own := dict "leg" $leg "log" (dict "format" "json") -}}
{{- if include "baton.twoLegs" . }}{{ with .Values.provider.istio.twoLegs -}}
{{- $at := printf "http://%s.%s.svc:%d" (include "baton.legs" $) (include "baton.gatewayOf" $ | fromYaml).namespace (int64 .prefillPort) -}}
{{- $_ := set $own "prefill" (dict "listener" $at) -}}
{{- end }}{{ end -}}
{{- /* By key: merge takes the chart's in place of what is empty. */ -}}
{{- range $part, $keys := $own -}}
{{- range $key, $value := get $c $part | default dict }}{{ $_ := set $keys $key $value }}{{ end -}}
{{- $_ := set $c $part $keys -}}
{{- end -}}
{{- with .Values.router.tracing }}{{ if .enabled -}}
{{- $at := required "router.tracing.otelExporterEndpoint: expected an OTLP collector, such as http://collector:4317, since router.tracing.enabled is true" .otelExporterEndpoint -}}
{{- $_ := set $c "trace" (merge (dict "endpoint" (regexReplaceAll "^https?://" $at "") "insecure" (hasPrefix "http://" $at)) (default dict $c.trace)) -}}
{{- end }}{{ end -}}
{{ toYaml $c }}
{{- end }}

{{- /* The configuration's name has its sum: a pod reads the configuration that it was made for and no other,
whatever is rolled out or back meanwhile, and a new one makes new pods. */ -}}
{{- define "baton.configName" -}}
{{ include "baton.name" . }}-{{ include "baton.config" . | sha256sum | trunc 10 }}
{{- end }}

{{- /* "true" if an object has a key, as a.b.0.c; else empty. */ -}}
{{- define "baton.has" -}}
{{- $at := index . 0 -}}
{{- $is := true -}}
{{- range splitList "." (index . 1) -}}
{{- if and (kindIs "map" $at) (hasKey $at .) }}{{ $at = index $at . }}
{{- else if and (kindIs "slice" $at) (eq . "0") $at }}{{ $at = first $at }}
{{- else }}{{ $is = false }}{{ $at = "" }}{{ end -}}
{{- end -}}
{{- if $is }}true{{ end -}}
{{- end }}

{{- /* A flag beats the configuration (docs/gateway-api.md), and the later of two flags the earlier one. So
of what is said twice one would be lost without a word: all such are refused at once. files/flags.yaml has
the keys of each flag. */ -}}
{{- define "baton.conflicts" -}}
{{- $e := .Values.router.epp -}}
{{- $own := dict "listen" "router.epp.extProcPort" "probes.listen" "router.epp.grpcHealthPort" "metrics.listen" "router.epp.metricsPort" "drain_timeout" "router.epp.drainTimeoutSeconds" -}}
{{- range $key := list "pool" "selector" "target_ports" }}{{ $_ := set $own (printf "discovery.kubernetes.0.%s" $key) "router.inferencePool and router.modelServers" }}{{ end -}}
{{- if .Values.router.tracing.enabled }}{{ range $key := list "trace.endpoint" "trace.insecure" }}{{ $_ := set $own $key "router.tracing" }}{{ end }}{{ end -}}
{{- $faults := list -}}
{{- range $key, $value := $own }}{{ if include "baton.has" (list $e.config $key) -}}
{{- $faults = append $faults (printf "router.epp.config: %s would be lost, since the chart sets it by %s: expected it there alone" $key $value) -}}
{{- end }}{{ end -}}
{{- if include "baton.has" (list $e.config "leg.advertise") -}}
{{- $faults = append $faults "router.epp.config: leg.advertise would be lost, since each picker has an address of its own: expected none, or router.epp.flags.leg-advertise, where $(POD_IP) is the pod's" -}}
{{- end -}}
{{- $ports := dict -}}
{{- range $name := list "extProcPort" "grpcHealthPort" "metricsPort" -}}
{{- $port := get $e $name | int64 | toString -}}
{{- with get $ports $port }}{{ $faults = append $faults (printf "router.epp.%s: router.epp.%s has the port %s, too: expected another one" $name . $port) }}{{ end -}}
{{- $_ := set $ports $port $name -}}
{{- end -}}
{{- $keys := .Files.Get "files/flags.yaml" | fromYaml -}}
{{- $by := dict -}}
{{- range $flag, $value := $e.flags -}}
{{- $said := include "baton.flag" $value -}}
{{- if eq $flag "baton-config" }}{{ $faults = append $faults "router.epp.flags.baton-config: the chart sets it: expected the configuration in router.epp.config" }}{{ end -}}
{{- range $key := concat (default list (get $keys $flag)) (default list (get $keys (printf "%s=%s" $flag $said))) -}}
{{- if hasKey $own $key -}}
{{- $faults = append $faults (printf "router.epp.flags.%s: it sets %s, which the chart sets by %s: expected it there alone" $flag $key (get $own $key)) -}}
{{- else if include "baton.has" (list $e.config $key) -}}
{{- $faults = append $faults (printf "router.epp.flags.%s: it would beat %s of router.epp.config: expected one of the two" $flag $key) -}}
{{- else if hasKey $by $key -}}
{{- $faults = append $faults (printf "router.epp.flags.%s: it sets %s, as router.epp.flags.%s does: expected one of the two" $flag $key (get $by $key)) -}}
{{- end -}}
{{- $_ := set $by $key $flag -}}
{{- end -}}
{{- end -}}
{{- with uniq $faults }}{{ fail (join "\n" . | printf "said twice:\n%s") }}{{ end -}}
{{- end }}

{{- /* Numbers of values are floating-point: 1000000 is to be that, and not 1e+06. */ -}}
{{- define "baton.flag" -}}
{{- if and (kindIs "float64" .) (eq (float64 (int64 .)) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end }}
