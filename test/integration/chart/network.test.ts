// Who may connect to the chart's pods, and what Prometheus scrapes of the scheduler.
import { find, type Json, list, objectsOf, render, testWithHelm } from './chart.ts';

const SCRAPERS = [{ namespaceSelector: { matchLabels: { 'kubernetes.io/metadata.name': 'monitoring' } } }];
const SERVERS = [{ ipBlock: { cidr: '10.0.0.0/28' } }];

/** For each policy: its ports, each with the peers that reach it. */
function opened(objects: readonly Json[]) {
  const policies = objects.filter(({ kind }) => String(kind) === 'NetworkPolicy');
  return Object.fromEntries(
    policies.map(({ metadata, spec }) => [
      String(metadata?.name),
      list(spec?.ingress).flatMap((rule) =>
        list(rule.ports).map((each) => [String(each.port), rule.from === undefined ? 'any' : rule.from]),
      ),
    ]),
  );
}

testWithHelm('by default there are no NetworkPolicies, and with them scrapers must be named', (t) => {
  t.deepEqual(opened(objectsOf(t)), {});
  t.regex(render({ networkPolicies: { enabled: true } }).text, /networkPolicies.scrapers: name the pods of Prometheus/);
});

testWithHelm('only scrapers reach metrics, and only API servers the webhook and the agents', (t) => {
  const objects = objectsOf(t, { networkPolicies: { enabled: true, scrapers: SCRAPERS, apiServers: SERVERS } });
  t.deepEqual(opened(objects), {
    'cotenant-agent': [
      ['metrics', SCRAPERS],
      ['metrics', SERVERS],
    ],
    'cotenant-webhook': [
      ['health', SCRAPERS],
      ['https', SERVERS],
    ],
    'cotenant-scheduler': [
      ['health', SCRAPERS],
      ['scheduler', SCRAPERS],
    ],
  });
  for (const name of ['cotenant-agent', 'cotenant-webhook', 'cotenant-scheduler']) {
    const { spec } = find(objects, 'NetworkPolicy', name);
    const kind = name === 'cotenant-agent' ? 'DaemonSet' : 'Deployment';
    t.deepEqual(spec?.podSelector?.matchLabels, find(objects, kind, name).spec?.selector?.matchLabels);
    t.deepEqual(list(spec?.policyTypes).map(String), ['Ingress']);
  }
});

testWithHelm('without addresses of API servers the webhook is open, and agents are closed', (t) => {
  const found = opened(objectsOf(t, { networkPolicies: { enabled: true, scrapers: SCRAPERS } }));
  t.deepEqual(found['cotenant-webhook'], [
    ['health', SCRAPERS],
    ['https', 'any'],
  ]);
  t.deepEqual(found['cotenant-agent'], [['metrics', SCRAPERS]]);
});

testWithHelm('each port of a policy is a port of its pods', (t) => {
  const objects = objectsOf(t, { networkPolicies: { enabled: true, scrapers: SCRAPERS, apiServers: SERVERS } });
  for (const [name, ports] of Object.entries(opened(objects))) {
    const kind = name === 'cotenant-agent' ? 'DaemonSet' : 'Deployment';
    const containers = list(find(objects, kind, name).spec?.template?.spec?.containers);
    const own = containers.flatMap((container) => list(container.ports).map((port) => String(port.name)));
    t.deepEqual(
      ports.map(([port]) => port).filter((port) => !own.includes(String(port))),
      [],
      name,
    );
  }
});

testWithHelm("kube-scheduler's metrics are scraped without sending a token", (t) => {
  const objects = objectsOf(t, { serviceMonitor: { enabled: true } });
  const endpoints = list(find(objects, 'ServiceMonitor', 'cotenant-scheduler').spec?.endpoints);
  t.deepEqual(
    endpoints.map(({ port }) => String(port)),
    ['health', 'scheduler'],
  );
  t.is(String(endpoints[1]?.scheme), 'https');
  t.false(JSON.stringify(endpoints[1]).includes('bearer'));
  const ports = list(find(objects, 'Service', 'cotenant-scheduler').spec?.ports).map(({ name }) => String(name));
  t.deepEqual(ports, ['health', 'scheduler']);
  const containers = list(find(objects, 'Deployment', 'cotenant-scheduler').spec?.template?.spec?.containers);
  const args = containers.flatMap(({ command }) => list(command).map(String));
  t.true(args.includes('--authorization-always-allow-paths=/healthz,/livez,/readyz,/metrics'));
});
