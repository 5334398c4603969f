// The scheduler's part of the chart: that kube-scheduler, the extender, the webhook and the Lease get one
// another by the same names and ports, and who may do what.
import { parse as parseYaml } from 'yaml';
import { OWN_RESOURCES } from '../../../src/api/names.ts';
import { scheduler } from '../../../src/cli/daemons/scheduler.ts';
import { parse } from '../../../src/cli/lib/command.ts';
import { BEST_SCORE } from '../../../src/placement/score.ts';
import { DEFAULT_CONFIGURATION } from '../../../webhook/config.ts';
import { find, type Json, list, NAMESPACE, objectsOf, render, testWithHelm } from './chart.ts';
import { unknownFields } from './fields.ts';

const NAME = 'cotenant-scheduler';

const containersOf = (objects: readonly Json[]) => {
  const containers = list(find(objects, 'Deployment', NAME).spec?.template?.spec?.containers);
  const named = (name: string) => containers.find((container) => String(container.name) === name);
  return { extender: named('extender'), kubeScheduler: named('kube-scheduler') };
};
const configurationOf = (objects: readonly Json[]): Json =>
  parseYaml(String(find(objects, 'ConfigMap', NAME).data?.['configuration.yaml']));

testWithHelm('kube-scheduler asks the extender beside it, and both go by one Lease', (t) => {
  const objects = objectsOf(t, {
    scheduler: {
      ...{ port: 9555, weight: 300, placement: 'spread', overcommittedAfterSeconds: 40 },
      log: { level: 'debug' },
    },
  });
  const configuration = configurationOf(objects);
  const { extender, kubeScheduler } = containersOf(objects);
  const [command, ...args] = list(extender?.args).map(String);
  t.is(command, scheduler.name);
  const parsed = parse(scheduler, args);
  if (parsed === 'help') return t.fail();
  t.like(parsed.values, {
    lease: `${NAMESPACE}/${NAME}`,
    host: '127.0.0.1',
    port: '9555',
    'health-port': '9841',
    placement: 'spread',
    'most-nodes': '1',
    'overcommitted-after': '40',
    'log-level': 'debug',
  });
  t.like(configuration, {
    leaderElection: { leaderElect: true, resourceName: NAME, resourceNamespace: NAMESPACE },
    profiles: [{ schedulerName: DEFAULT_CONFIGURATION.schedulerName, percentageOfNodesToScore: 100 }],
  });
  const [asked, ...others] = list(configuration.extenders);
  t.deepEqual(others, []);
  t.like(asked, {
    urlPrefix: 'http://127.0.0.1:9555',
    filterVerb: 'filter',
    prioritizeVerb: 'prioritize',
    bindVerb: 'bind',
    weight: 300,
    nodeCacheCapable: true,
    ignorable: false,
  });
  t.deepEqual(
    list(asked?.managedResources).map(({ name }) => String(name)),
    OWN_RESOURCES as string[],
  );
  const mounted = list(kubeScheduler?.volumeMounts)[0]?.mountPath;
  t.true(list(kubeScheduler?.command).map(String).includes(`--config=${mounted}/configuration.yaml`));
});

/** Points of a plugin are 100 at most, and the protocol's ten are stretched to them; weights of 1.36's defaults. */
const ALL_PLUGINS = 100 * [1, 1, 1, 3, 2, 2, 2].reduce((sum, weight) => sum + weight, 0);

testWithHelm('the best node is given alone where it outweighs all plugins of kube-scheduler', (t) => {
  const [asked] = list(configurationOf(objectsOf(t)).extenders);
  const enough = ALL_PLUGINS / (100 / BEST_SCORE);
  t.true(Number(asked?.weight) > enough);
  const isAlone = (values: object) =>
    list(containersOf(objectsOf(t, { scheduler: values })).extender?.args)
      .map(String)
      .includes('--most-nodes=1');
  t.true(isAlone({}));
  t.true(isAlone({ weight: enough + 1 }));
  t.false(isAlone({ weight: enough }));
  // The configuration of the cluster's own kube-scheduler is not the chart's.
  const certificates = { serverSecretName: 'server', clientCaSecretName: 'callers' };
  t.false(isAlone({ service: { enabled: true, ...certificates } }));
});

testWithHelm('the profile is called as the webhook writes it into pods', (t) => {
  const objects = objectsOf(t, { webhook: { enabled: true, configuration: { schedulerName: 'gpu' } } });
  t.is(String(list(configurationOf(objects).profiles)[0]?.schedulerName), 'gpu');
  t.is(String(list(configurationOf(objectsOf(t, { webhook: null })).profiles)[0]?.schedulerName), NAME);
});

testWithHelm("kube-scheduler is of the cluster's version, unless another one is named", (t) => {
  const imageOf = (values: object, ...args: readonly string[]) =>
    String(containersOf(objectsOf(t, { scheduler: { kubeScheduler: values } }, ...args)).kubeScheduler?.image);
  t.is(imageOf({}, '--kube-version', 'v1.33.5-gke.1080'), 'registry.k8s.io/kube-scheduler:v1.33.5');
  t.is(imageOf({ image: { repository: 'mirror/ks', tag: 'v1.34.0' } }), 'mirror/ks:v1.34.0');
  const digest = `sha256:${'0a'.repeat(32)}`;
  t.is(imageOf({ image: { repository: 'mirror/ks', tag: 'v1.34.0', digest } }), `mirror/ks@${digest}`);
});

testWithHelm("it has kube-scheduler's permissions, evictions and its own Lease, no others", (t) => {
  const objects = objectsOf(t);
  const pod = find(objects, 'Deployment', NAME).spec?.template?.spec;
  t.is(String(pod?.serviceAccountName), NAME);
  const roles = objects.filter(
    ({ kind, subjects }) => /Binding$/.test(String(kind)) && list(subjects).some(({ name }) => String(name) === NAME),
  );
  t.deepEqual(roles.map(({ roleRef }) => `${roleRef?.kind} ${roleRef?.name}`).sort(), [
    `ClusterRole ${NAME}`,
    'ClusterRole system:kube-scheduler',
    'ClusterRole system:volume-scheduler',
    `Role ${NAME}`,
  ]);
  const rulesOf = (kind: string) =>
    list(find(objects, kind, NAME).rules).map(
      ({ resources, resourceNames, verbs }) => `${list(resources)} ${list(resourceNames)}: ${list(verbs)}`,
    );
  t.deepEqual(rulesOf('Role'), ['leases : create', `leases ${NAME}: get,list,watch,update`]);
  t.deepEqual(rulesOf('ClusterRole'), ['pods/eviction : create', 'pods,pods/status : patch']);
  const grouped = objectsOf(t, {}, '--api-versions', 'scheduling.k8s.io/v1alpha2/PodGroup');
  t.like(list(find(grouped, 'ClusterRole', NAME).rules).at(-1), { resources: ['podgroups'], verbs: ['get'] });
  const budgets = objectsOf(t, { scheduler: { replicas: 1 } }).filter(
    ({ kind, metadata }) => String(kind) === 'PodDisruptionBudget' && String(metadata?.name) === NAME,
  );
  t.deepEqual(budgets, []);
});

testWithHelm('another configuration is another pod', (t) => {
  const sum = (values: object) =>
    String(
      find(objectsOf(t, { scheduler: values }), 'Deployment', NAME).spec?.template?.metadata?.annotations?.[
        'checksum/configuration'
      ],
    );
  t.is(sum({}), sum({ replicas: 3 }));
  t.not(sum({}), sum({ weight: 3 }));
});

const ALONE = {
  scheduler: { service: { enabled: true, serverSecretName: 'own', clientCaSecretName: 'callers' } },
};

testWithHelm("for the cluster's scheduler only the extender runs, with a Service and mTLS", (t) => {
  const objects = objectsOf(t, ALONE);
  t.deepEqual(objects.flatMap(unknownFields), []);
  const { spec } = find(objects, 'Deployment', NAME);
  t.like(spec, { replicas: 1, strategy: { type: 'Recreate' } });
  const pod = spec?.template?.spec;
  const [extender, ...others] = list(pod?.containers);
  t.deepEqual(others, []);
  const [command, ...args] = list(extender?.args).map(String);
  t.is(command, scheduler.name);
  const parsed = parse(scheduler, args);
  if (parsed === 'help') return t.fail();
  t.like(parsed.values, { lease: `${NAMESPACE}/${NAME}`, 'lease-holder': 'self', host: '0.0.0.0' });
  // Each file lies in what is mounted, from the Secret that was named.
  const secretOf = (option: string) => {
    const path = String(parsed.values[option]);
    const mount = list(extender?.volumeMounts).find(({ mountPath }) => path.startsWith(`${mountPath}/`));
    const volume = list(pod?.volumes).find(({ name }) => String(name) === String(mount?.name));
    return `${volume?.secret?.secretName} ${path.split('/').at(-1)}`;
  };
  t.deepEqual(['cert', 'key', 'client-ca'].map(secretOf), ['own tls.crt', 'own tls.key', 'callers ca.crt']);
  const called = find(objects, 'Service', 'cotenant-extender').spec;
  t.is(called?.publishNotReadyAddresses, undefined, 'only the pod that leads is ready');
  const [port] = list(called?.ports);
  t.is(String(port?.port), String(parsed.values.port));
  t.true(list(extender?.ports).some(({ name }) => String(name) === String(port?.targetPort)));
  const kinds = objects.map(({ kind, metadata }) => `${kind}/${metadata?.name}`);
  t.deepEqual(
    kinds.filter(
      (name) =>
        /(ConfigMap|PodDisruptionBudget|-kube-scheduler|-volume-scheduler)/.test(name) && /scheduler/.test(name),
    ),
    [],
  );
  t.deepEqual(
    list(find(objects, 'ClusterRole', NAME).rules).map(({ resources, verbs }) => `${list(resources)}: ${list(verbs)}`),
    [
      'pods/eviction: create',
      'pods,pods/status: patch',
      'nodes: list,watch',
      'pods: get,list,watch',
      'pods/binding: create',
      'poddisruptionbudgets: list,watch',
      'events: create,patch',
    ],
  );
});

testWithHelm('the Secrets of the Service must be named', (t) => {
  for (const missing of ['serverSecretName', 'clientCaSecretName']) {
    const { ok, text } = render({ scheduler: { service: { ...ALONE.scheduler.service, [missing]: '' } } });
    t.false(ok);
    t.true(text.includes(`scheduler.service.${missing}`), text);
  }
});
