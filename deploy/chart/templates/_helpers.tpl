{{- /* What several templates need. */}}

{{- /* The name of an image of ours: (dict "root" $ "name" "cloud"). */}}
{{- define "csi-bridge.image" -}}
{{- $images := .root.Values.images -}}
{{- include "csi-bridge.pinned" (dict "root" .root "name" .name "image" (printf "%s/%s:%s" $images.registry .name ($images.tag | default .root.Chart.AppVersion))) -}}
{{- end -}}

{{- /* The name of a sidecar's image: (dict "root" $ "name" "csi-provisioner"). */}}
{{- define "csi-bridge.sidecarImage" -}}
{{- $images := .root.Values.images -}}
{{- include "csi-bridge.pinned" (dict "root" .root "name" .name "image" (printf "%s/%s:%s" $images.sidecarRegistry .name (get $images.sidecarTags .name))) -}}
{{- end -}}

{{- define "csi-bridge.pinned" -}}
{{- $digest := get .root.Values.images.digests .name -}}
{{- if and .root.Values.admissionPolicies.enabled .root.Values.admissionPolicies.digests (not $digest) -}}
{{- fail (printf "admissionPolicies.digests lets only images with a digest run, and images.digests has none for %s (deploy/images/digests.sh finds them)" .name) -}}
{{- end -}}
{{ .image }}{{ with $digest }}@{{ . }}{{ end }}
{{- end -}}

{{- define "csi-bridge.pull" }}
{{- with .Values.images.pullSecrets }}
      imagePullSecrets:
        {{- range . }}
        - {name: {{ . }}}
        {{- end }}
{{- end }}
{{- end -}}

{{- /* The name of a driver's objects: "csi-bridge-driver", or "csi-bridge-driver-SHORT". */}}
{{- define "csi-bridge.suffix" -}}
{{- with .shortName }}-{{ . }}{{ end -}}
{{- end -}}

{{- /* Whoever calls the API server for a driver: the account of its pod, or of the hub's. */}}
{{- define "csi-bridge.account" -}}
{{- if .inHub }}csi-bridge-hub{{ else }}csi-bridge-driver{{ include "csi-bridge.suffix" . }}{{ end -}}
{{- end -}}

{{- define "csi-bridge.hubLabels" -}}
{app.kubernetes.io/name: csi-bridge, app.kubernetes.io/component: hub}
{{- end -}}

{{- /* What runs in the cloud keeps off the edge. */}}
{{- define "csi-bridge.inCloud" -}}
{{- if .Values.keepOffEdge -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions:
          - {key: csi-bridge.io/edge, operator: DoesNotExist}
          - {key: node-role.kubernetes.io/edge, operator: DoesNotExist}
{{- else -}}
{}
{{- end -}}
{{- end -}}

{{- define "csi-bridge.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* The ports of the API server, as a rule of a NetworkPolicy. */}}
{{- define "csi-bridge.apiServer" -}}
- ports:
    {{- range .Values.networkPolicies.apiServerPorts }}
    - {port: {{ . }}}
    {{- end }}
{{- end -}}

{{- define "csi-bridge.dns" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53}
{{- end -}}

{{- define "csi-bridge.toHub" -}}
- to:
    - podSelector:
        matchLabels: {{ include "csi-bridge.hubLabels" . }}
  ports: [{port: 10350}]
{{- end -}}

{{- /* The hubs' addresses inside the cluster, as arguments. */}}
{{- define "csi-bridge.hubEndpoints" -}}
{{- if eq (int .Values.hub.replicas) 2 -}}
- --hub-endpoint=wss://csi-bridge-hub-0.{{ .Release.Namespace }}.svc:10350
- --hub-endpoint=wss://csi-bridge-hub-1.{{ .Release.Namespace }}.svc:10350
{{- else -}}
- --hub-endpoint=wss://csi-bridge-hub.{{ .Release.Namespace }}.svc:10350
{{- end -}}
{{- end -}}

{{- /*
The stock sidecars of a driver, on its socket: (dict "root" $ "driver" DRIVER). Their flags:

* --timeout=60s: a call that takes longer goes on at the edge, and the sidecar's retry gets its result.
* --retry-interval-max=1m: after a long outage the sidecars try again within a minute. Their default is five.
* --strict-topology: a CreateVolume names the pod's node alone, instead of all nodes.
* --leader-election-...: a sidecar survives an API server that is away for less than 40 s. A sidecar that exits forgets
  the volumes that it was about to make.
* --capacity-threads: one node that does not answer delays no other. --capacity-ownerref-level=1: the owner is the pod's
  owner, the StatefulSet, so that Kubernetes deletes CSIStorageCapacities with it.
*/}}
{{- define "csi-bridge.sidecars" -}}
{{- $root := .root -}}
{{- $driver := .driver -}}
{{- $inHub := $driver.inHub -}}
{{- range $kind := list "provisioner" "attacher" "resizer" "snapshotter" }}
{{- if hasKey $driver.sidecars $kind }}
{{- $more := get $driver.sidecars $kind | default dict }}
- name: csi-{{ $kind }}{{ if $inHub }}{{ include "csi-bridge.suffix" $driver }}{{ end }}
  image: {{ include "csi-bridge.sidecarImage" (dict "root" $root "name" (printf "csi-%s" $kind)) }}
  args:
    - --csi-address=/csi/csi.sock
    - --timeout=60s
    - --retry-interval-max=1m
    {{- if eq $kind "provisioner" }}
    - --strict-topology
    {{- end }}
    - --leader-election
    - --leader-election-lease-duration=60s
    - --leader-election-renew-deadline=40s
    - --leader-election-retry-period=5s
    {{- if and (eq $kind "provisioner") $driver.capacity }}
    - --enable-capacity
    - --capacity-threads=8
    - --capacity-ownerref-level=1
    {{- end }}
    {{- if and (eq $kind "snapshotter") $driver.groupSnapshots }}
    - --feature-gates=CSIVolumeGroupSnapshot=true
    {{- end }}
    {{- with $more.args }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if and (eq $kind "provisioner") $driver.capacity }}
  env:
    - {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  {{- end }}
  resources: {{ $more.resources | default (dict "requests" (dict "cpu" "10m" "memory" "32Mi")) | toJson }}
  securityContext:
    {{- include "csi-bridge.confined" $root | nindent 4 }}
  volumeMounts:
    - {name: socket{{ if $inHub }}{{ include "csi-bridge.suffix" $driver }}{{ end }}, mountPath: /csi}
{{- end }}
{{- end }}
{{- end -}}

{{- /* The addresses that joining nodes are told, as JSON. Of a Service that only the cluster knows the certificate's names do not do. */}}
{{- define "csi-bridge.hubAddresses" -}}
{{- if .Values.hub.addresses }}{{ toJson .Values.hub.addresses }}
{{- else if eq .Values.hub.service.type "ClusterIP" }}{{ include "csi-bridge.insideAddresses" (dict "root" . "port" 10350) }}
{{- else }}[]{{ end }}
{{- end -}}

{{- define "csi-bridge.joinAddresses" -}}
{{- if .Values.hub.joinAddresses }}{{ toJson .Values.hub.joinAddresses }}
{{- else if eq .Values.hub.service.type "ClusterIP" }}{{ include "csi-bridge.insideAddresses" (dict "root" . "port" 10355) }}
{{- else }}[]{{ end }}
{{- end -}}

{{- define "csi-bridge.insideAddresses" -}}
{{- $suffix := printf "%s.svc:%d" .root.Release.Namespace .port -}}
{{- if eq (int .root.Values.hub.replicas) 2 -}}
{{ list (printf "wss://csi-bridge-hub-0.%s" $suffix) (printf "wss://csi-bridge-hub-1.%s" $suffix) | toJson }}
{{- else -}}
{{ list (printf "wss://csi-bridge-edges.%s" $suffix) | toJson }}
{{- end -}}
{{- end -}}

{{- /* A proxy driver's arguments, as the options of the hub's --serve. */}}
{{- define "csi-bridge.served" -}}
{{- $name := .name -}}
{{- range .args -}}
{{- if not (regexMatch "^--(placement|nodeid|endpoint-mode)=" .) -}}
{{- fail (printf "drivers: %s is in the hub's pod (inHub), where args may only be --placement, --nodeid and --endpoint-mode, with =; not %s" $name .) -}}
{{- end -}}
,{{ trimPrefix "--" . }}
{{- end -}}
{{- end -}}

{{- define "csi-bridge.agentConfined" -}}
runAsUser: 0
{{ include "csi-bridge.confined" . }}
# SELinux lets no other type of container use the host's directories. Hosts without SELinux ignore it.
seLinuxOptions: {type: spc_t}
{{- end -}}

{{- /* The names in the hub's certificate that the chart makes. */}}
{{- define "csi-bridge.certified" -}}
{{- $namespace := .Release.Namespace -}}
csi-bridge-hub.{{ $namespace }}.svc
{{- if eq (int .Values.hub.replicas) 2 }} csi-bridge-hub-0.{{ $namespace }}.svc csi-bridge-hub-1.{{ $namespace }}.svc
{{- else }} csi-bridge-edges.{{ $namespace }}.svc{{ end }}
{{- range .Values.certificates.names }} {{ . }}{{ end }}
{{- range .Values.drivers }}{{ if .inHub }} csi-bridge:driver:{{ .name }}{{ end }}{{ end }}
{{- end -}}
