// What the chart renders: that it fits together, who may do what, and that nothing is spelled in a way the API does not
// know.
import { parse } from 'yaml';
import { alertmanagerConfig } from '../../../dashboards/alerts/alertmanager.ts';
import { alertRules } from '../../../dashboards/alerts/rules.ts';
import { BOARDS } from '../../../dashboards/boards.ts';
import { recordingRules } from '../../../dashboards/recording.ts';
import { COMPONENT_LABEL } from '../../../src/api/names.ts';
import { parseConfiguration } from '../../../webhook/config.ts';
import {
  ALL,
  CHART,
  find,
  helm,
  type Json,
  list,
  NAMESPACE,
  objectsOf,
  render,
  testWithHelm,
  workloads,
} from './chart.ts';
import { unknownFields } from './fields.ts';

const kinds = (objects: readonly Json[]) => objects.map((object) => `${object.kind}/${object.metadata?.name}`).sort();
const DEFAULTS = [
  'CSIDriver/cotenant.io',
  'ClusterRole/cotenant-agent',
  'ClusterRoleBinding/cotenant-agent',
  'ClusterRole/cotenant-scheduler',
  'ClusterRoleBinding/cotenant-scheduler',
  'ClusterRoleBinding/cotenant-scheduler-kube-scheduler',
  'ClusterRoleBinding/cotenant-scheduler-volume-scheduler',
  'ConfigMap/cotenant-agent',
  'ConfigMap/cotenant-scheduler',
  'ConfigMap/cotenant-webhook',
  'DaemonSet/cotenant-agent',
  'Deployment/cotenant-scheduler',
  'Deployment/cotenant-webhook',
  'MutatingWebhookConfiguration/cotenant-webhook',
  'PodDisruptionBudget/cotenant-scheduler',
  'PodDisruptionBudget/cotenant-webhook',
  'Role/cotenant-scheduler',
  'RoleBinding/cotenant-scheduler',
  'Service/cotenant-agent',
  'Service/cotenant-scheduler',
  'Service/cotenant-webhook',
  'ServiceAccount/cotenant-agent',
  'ServiceAccount/cotenant-scheduler',
  'ValidatingWebhookConfiguration/cotenant-webhook',
  ...['ClusterRole', 'ClusterRoleBinding', 'ServiceAccount'].map((kind) => `${kind}/cotenant-status-reader`),
  ...['ClusterRole', 'ClusterRoleBinding', 'Job', 'ServiceAccount'].map((kind) => `${kind}/cotenant-uninstall-check`),
  ...['ClusterRole', 'ClusterRoleBinding', 'Role', 'RoleBinding', 'ServiceAccount'].map(
    (kind) => `${kind}/cotenant-webhook`,
  ),
  ...['bindings', 'debug', 'grants', 'nodes', 'shares'].flatMap((name) => [
    `ValidatingAdmissionPolicy/cotenant-${name}`,
    `ValidatingAdmissionPolicyBinding/cotenant-${name}`,
  ]),
];

testWithHelm('helm lint has nothing against the chart, by default and with everything on', (t) => {
  const monitoring = ['serviceMonitor', 'prometheusRule', 'alertmanagerConfig', 'grafanaDashboard'].map(
    (part) => `${part}.enabled=true`,
  );
  for (const switches of ['', monitoring.join()]) {
    const { ok, text } = helm(['lint', '--strict', CHART, ...(switches === '' ? [] : ['--set', switches])]);
    t.true(ok, text);
    t.regex(text, /0 chart\(s\) failed/);
  }
});

testWithHelm('the defaults have all that a pod with a share needs, and no foreign CRDs', (t) => {
  t.deepEqual(kinds(objectsOf(t)), DEFAULTS.toSorted());
});

testWithHelm('with everything on each object is there once', (t) => {
  t.deepEqual(
    kinds(objectsOf(t, ALL)),
    [
      ...DEFAULTS,
      ...[...BOARDS.keys()].map((name) => `ConfigMap/cotenant-board-${name}`),
      'AlertmanagerConfig/cotenant',
      'PrometheusRule/cotenant',
      'ServiceMonitor/cotenant-agent',
      'ServiceMonitor/cotenant-scheduler',
      'ServiceMonitor/cotenant-webhook',
    ].sort(),
  );
});

testWithHelm("every field of every object is one that Kubernetes' API has", (t) => {
  const objects = objectsOf(t, ALL);
  t.deepEqual(objects.flatMap(unknownFields), []);
  // The check itself: a field that the API does not have is found, at any depth.
  const [daemonSet] = workloads(objects);
  const misspelt = structuredClone(daemonSet) as unknown as { spec: { template: { spec: { containers: Json[] } } } };
  misspelt.spec.template.spec.containers[0] = { imagePullPolice: 'Always' } as unknown as Json;
  t.deepEqual(unknownFields(misspelt as unknown as Json), [
    'DaemonSet: spec.template.spec.containers.0.imagePullPolice',
  ]);
});

testWithHelm("objects have the release's namespace and labels; workloads take further ones", (t) => {
  const extra = { podLabels: { team: 'gpu' }, podAnnotations: { note: 'x' } };
  const objects = objectsOf(t, {
    ...ALL,
    commonLabels: { owner: 'platform' },
    agent: extra,
    webhook: { enabled: true, ...extra },
    scheduler: { enabled: true, ...extra },
  });
  const clusterWide = /^(ClusterRole.*|CSIDriver|.*WebhookConfiguration|ValidatingAdmissionPolicy.*)$/;
  for (const { kind, metadata } of objects) {
    t.is(String(metadata?.namespace), clusterWide.test(String(kind)) ? 'undefined' : NAMESPACE, String(kind));
    t.is(String(metadata?.labels?.['app.kubernetes.io/instance']), 'cotenant');
    t.is(String(metadata?.labels?.owner), 'platform');
  }
  const renamed = objectsOf(t, { nameOverride: 'gpus', fullnameOverride: 'shared-gpus' });
  t.deepEqual(
    workloads(renamed).map(({ spec }) => String(spec?.template?.metadata?.labels?.[COMPONENT_LABEL])),
    ['agent', 'scheduler', 'webhook'],
    'what inspect and why select by is the same under other names',
  );
  for (const { spec } of workloads(objects)) {
    t.like(spec?.template?.metadata, { labels: { team: 'gpu', owner: 'platform' }, annotations: { note: 'x' } });
  }
});

testWithHelm("a selector matches only its workload's pods, also after changed labels", (t) => {
  const objects = objectsOf(t, { ...ALL, commonLabels: { owner: 'platform' } });
  const pods = workloads(objects).map((workload) => ({
    name: String(workload.metadata?.name),
    labels: workload.spec?.template?.metadata?.labels,
    selector: workload.spec?.selector?.matchLabels,
  }));
  const selected = (selector: Json | undefined) =>
    pods
      .filter(({ labels }) => Object.entries(selector ?? { none: '' }).every(([key, value]) => labels?.[key] === value))
      .map(({ name }) => name);
  for (const { name, selector } of pods) {
    t.deepEqual(selected(selector), [name]);
    t.deepEqual(
      Object.keys(selector ?? {}),
      ['name', 'instance', 'component'].map((part) => `app.kubernetes.io/${part}`),
    );
  }
  for (const name of ['cotenant-agent', 'cotenant-webhook', 'cotenant-scheduler']) {
    t.deepEqual(selected(find(objects, 'Service', name).spec?.selector), [name]);
  }
  for (const name of ['cotenant-webhook', 'cotenant-scheduler']) {
    const budget = find(objects, 'PodDisruptionBudget', name);
    t.deepEqual(selected(budget.spec?.selector?.matchLabels), [name]);
    const spread = list(find(objects, 'Deployment', name).spec?.template?.spec?.topologySpreadConstraints);
    t.is(spread.length, 2);
    for (const { labelSelector } of spread) t.deepEqual(selected(labelSelector?.matchLabels), [name]);
  }
  // A ServiceMonitor selects Services, by their labels.
  for (const name of ['cotenant-agent', 'cotenant-webhook', 'cotenant-scheduler']) {
    const wanted = find(objects, 'ServiceMonitor', name).spec?.selector?.matchLabels ?? {};
    const services = objects.filter(({ kind }) => String(kind) === 'Service');
    const matching = services.filter(({ metadata }) =>
      Object.entries(wanted).every(([key, value]) => metadata?.labels?.[key] === value),
    );
    t.deepEqual(
      matching.map(({ metadata }) => String(metadata?.name)),
      [name],
    );
  }
});

testWithHelm('probes and Services name existing ports, and programs listen there', (t) => {
  const objects = objectsOf(t, {
    ...ALL,
    agent: { exporter: { port: 9700 } },
    webhook: { enabled: true, port: 9443, healthPort: 9080 },
    scheduler: { enabled: true, healthPort: 9081, kubeScheduler: { port: 11259 } },
  });
  for (const workload of workloads(objects)) {
    const containers = list(workload.spec?.template?.spec?.containers);
    const ports = containers.flatMap((container) => list(container.ports));
    const named = new Map(ports.map((port) => [String(port.name), Number(port.containerPort)]));
    const service = find(objects, 'Service', String(workload.metadata?.name));
    for (const { targetPort } of list(service.spec?.ports)) t.true(named.has(String(targetPort)), String(targetPort));
    for (const container of containers) {
      const own = list(container.ports).map(({ name }) => String(name));
      for (const probe of [container.readinessProbe, container.livenessProbe]) {
        if (probe?.httpGet !== undefined) t.true(own.includes(String(probe.httpGet.port)));
      }
      for (const { containerPort } of list(container.ports)) {
        const said = [...list(container.command), ...list(container.args)].map(String);
        const relevant = said.filter((each) =>
          new RegExp(`^--(port|health-port|secure-port|set=port)=${containerPort}$`).test(each),
        );
        t.is(relevant.length, 1, `${container.name} has no argument for port ${containerPort}`);
      }
    }
    const monitor = find(objects, 'ServiceMonitor', String(workload.metadata?.name));
    const served = list(service.spec?.ports).map(({ name }) => String(name));
    for (const { port } of list(monitor.spec?.endpoints)) t.true(served.includes(String(port)));
  }
  t.is(Number(find(objects, 'Service', 'cotenant-agent').spec?.ports?.[0]?.port), 9700);
});

testWithHelm('the image is one for all, by tag or by digest, and never the newest by name', (t) => {
  const images = (values: object) =>
    new Set(
      workloads(objectsOf(t, { ...ALL, ...values })).flatMap(({ spec }) =>
        list(spec?.template?.spec?.containers)
          .filter(({ name }) => String(name) !== 'kube-scheduler')
          .map(({ image }) => String(image)),
      ),
    );
  t.deepEqual([...images({})], ['cotenant:0.1.0']);
  t.deepEqual([...images({ image: { repository: 'mirror/cotenant', tag: '1.2.3' } })], ['mirror/cotenant:1.2.3']);
  const digest = `sha256:${'0a'.repeat(32)}`;
  t.deepEqual([...images({ image: { tag: '1.2.3', digest } })], [`cotenant@${digest}`]);
  t.false(render({ image: { tag: 'latest' } }).ok);
});

testWithHelm('dashboards and rules are those of dashboards/, with the URLs that are set', (t) => {
  const objects = objectsOf(t, ALL);
  for (const [name, board] of BOARDS) {
    const { data = {}, metadata } = find(objects, 'ConfigMap', `cotenant-board-${name}`);
    t.deepEqual(Object.keys(data), [`cotenant-${name}.json`]);
    const text = String(data[`cotenant-${name}.json`]);
    t.deepEqual(JSON.parse(text), JSON.parse(JSON.stringify(board)));
    t.like(metadata, { labels: { grafana_dashboard: '1' }, annotations: { grafana_folder: 'Cotenant' } });
    // What kubectl apply may note of an object (TotalAnnotationSizeLimitB of Kubernetes' API).
    t.true(Buffer.byteLength(JSON.stringify({ data })) < 256 * 1024 * 0.9, name);
  }
  const rules = find(objects, 'PrometheusRule', 'cotenant').spec;
  const groups: readonly unknown[] = [...alertRules().groups, ...recordingRules().groups];
  t.deepEqual(rules as unknown, { groups });
  const urlsGiven = { runbookBaseUrl: 'https://wiki.example/runbook', grafanaUrl: 'https://grafana.example/g/' };
  const values = { prometheusRule: { enabled: true, ...urlsGiven } };
  const moved = find(objectsOf(t, values), 'PrometheusRule', 'cotenant').spec;
  const urls = list(moved?.groups?.[0]?.rules).map(({ annotations }) => String(annotations?.runbook_url));
  t.is(urls.length, alertRules().groups.flatMap(({ rules }) => rules).length);
  t.true(
    urls.every((url) => url.startsWith('https://wiki.example/runbook#cotenant')),
    urls.join(),
  );
  const before = alertRules().groups.flatMap(({ rules }) => rules.map(({ annotations }) => annotations.dashboard));
  t.deepEqual(
    list(moved?.groups?.[0]?.rules).map(({ annotations }) => String(annotations?.dashboard)),
    before.map((path) => `https://grafana.example/g${path}`),
  );
});

testWithHelm("Alertmanager's routes are those of the example, with the receivers of the values", (t) => {
  const pages = { pagerdutyConfigs: [{ routingKey: { name: 'pagerduty', key: 'key' } }] };
  const given = { alertmanagerConfig: { enabled: true, labels: { alertmanager: 'main' }, pages } };
  const { metadata, spec } = find(objectsOf(t, given), 'AlertmanagerConfig', 'cotenant');
  t.is(String(metadata?.labels?.alertmanager), 'main');
  const { spec: written } = alertmanagerConfig();
  const receivers = written.receivers.map((each) => ({ ...each, ...(each.name === 'cotenant-pages' && pages) }));
  t.deepEqual(spec as unknown, { ...written, receivers });
});

testWithHelm('Prometheus gets the job, instance and tenant labels that rules need', (t) => {
  const [endpoint] = list(find(objectsOf(t, ALL), 'ServiceMonitor', 'cotenant-agent').spec?.endpoints);
  t.is(Boolean(endpoint?.honorLabels), true);
  t.like(list(endpoint?.relabelings)[0], { targetLabel: 'job', replacement: 'cotenant' });
  t.like(list(endpoint?.relabelings)[1], {
    sourceLabels: ['__meta_kubernetes_pod_node_name'],
    targetLabel: 'instance',
  });
  t.like(list(endpoint?.relabelings)[2], { action: 'labeldrop', regex: 'namespace|pod|container|service|endpoint' });
});

testWithHelm('the webhook can read its configuration, with agent and scheduler as writers', (t) => {
  const configuration = {
    annotationWriters: ['alice'],
    runtimeClassName: 'nvidia',
    rules: { dialects: ['ack'], ack: { unit: 'MiB' }, templates: { small: { gpuMemory: '4Gi' } } },
    namespaces: { research: { dialects: ['metagpu'], allowGpuUuid: true } },
  };
  for (const given of [{}, { configuration }]) {
    const objects = objectsOf(t, { webhook: { enabled: true, ...given } });
    const text = find(objects, 'ConfigMap', 'cotenant-webhook').data?.['configuration.yaml'];
    const read = parseConfiguration(parse(String(text)));
    t.true(read.ok, JSON.stringify(read));
    if (!read.ok) return;
    const writers = ['agent', 'scheduler'].map((part) => `system:serviceaccount:${NAMESPACE}:cotenant-${part}`);
    t.deepEqual(read.value.annotationWriters.slice(-2), writers);
    t.is(read.value.schedulerName, 'cotenant-scheduler');
    t.is(read.value.namespaces.size, 'configuration' in given ? 1 : 0);
  }
});

testWithHelm('a changed configuration changes the pods of the webhook, and nothing else does', (t) => {
  const sum = (values: object) =>
    String(
      find(objectsOf(t, { webhook: { enabled: true, ...values } }), 'Deployment', 'cotenant-webhook').spec?.template
        ?.metadata?.annotations?.['checksum/configuration'],
    );
  t.is(sum({}), sum({ replicas: 3 }));
  t.not(sum({}), sum({ configuration: { rules: { dialects: ['ack'] } } }));
});
