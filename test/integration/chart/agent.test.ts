// The agent's part of the chart: who in the pod may do what, and that the program takes the command lines it is given.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DEFAULTS } from '../../../src/agent/config.ts';
import { NAMESPACE_ANNOTATION } from '../../../src/api/names.ts';
import { uninstallCheck } from '../../../src/cli/commands/maintenance/uninstall-check.ts';
import { agent } from '../../../src/cli/daemons/agent.ts';
import { configurationOf } from '../../../src/cli/daemons/agent-settings.ts';
import { exporter } from '../../../src/cli/daemons/exporter.ts';
import { webhook } from '../../../src/cli/daemons/webhook.ts';
import { type Command, parse } from '../../../src/cli/lib/command.ts';
import { ALL, find, type Json, list, NAMESPACE, objectsOf, root, schemaAt, testWithHelm, workloads } from './chart.ts';

const STRICT = {
  privileged: false,
  allowPrivilegeEscalation: false,
  readOnlyRootFilesystem: true,
  runAsNonRoot: true,
  runAsUser: 65532,
  capabilities: { drop: ['ALL'] },
  seccompProfile: { type: 'RuntimeDefault' },
};

const podOf = (objects: readonly Json[], kind: string, name: string) => find(objects, kind, name).spec?.template?.spec;

testWithHelm('no container that is privileged, root or capable can be reached over the network', (t) => {
  const roles = workloads(objectsOf(t, ALL)).flatMap((workload) => {
    const pod = workload.spec?.template?.spec;
    t.is(pod?.hostNetwork, undefined);
    t.is(pod?.initContainers, undefined);
    return list(pod?.containers).map((container) => {
      const { securityContext, ports, args, readinessProbe, livenessProbe } = container;
      const strict = list(ports).length > 0;
      const { runAsUser: _, ...strictly } = STRICT;
      if (strict) t.like(securityContext, strictly, String(container.name));
      if (!strict) {
        t.true(
          list(args).some((arg) => String(arg).startsWith('--set=page.socket=/')),
          'listens on no port',
        );
        for (const probe of [readinessProbe, livenessProbe]) {
          t.is(probe?.httpGet ?? probe?.tcpSocket ?? probe?.grpc, undefined, 'is asked from within');
        }
      }
      return `${container.name}: ${strict ? 'reached, can do nothing' : 'not reached'}`;
    });
  });
  t.deepEqual(roles, [
    'node: not reached',
    'exporter: reached, can do nothing',
    'extender: reached, can do nothing',
    'kube-scheduler: reached, can do nothing',
    'webhook: reached, can do nothing',
  ]);
});

testWithHelm('only the node container is privileged and has devices, token and host writes', (t) => {
  for (const values of [{}, ALL]) {
    const pod = podOf(objectsOf(t, values), 'DaemonSet', 'cotenant-agent');
    t.like(pod, { hostPID: true, automountServiceAccountToken: false });
    const [node, exporter] = list(pod?.containers);
    t.like(node?.securityContext, { privileged: true, readOnlyRootFilesystem: true });
    // A process that runs as the user of others in the host's PID namespace may signal them.
    const own = 59_837;
    t.like(exporter?.securityContext, { ...STRICT, runAsUser: own, runAsGroup: own });
    const visible = (container: Json | undefined) =>
      list(container?.env).find(({ name }) => String(name) === 'NVIDIA_VISIBLE_DEVICES')?.value;
    t.deepEqual([visible(node), visible(exporter)].map(String), ['all', 'void']);
    t.deepEqual(
      list(exporter?.volumeMounts).map(({ name, readOnly }) => `${name} ${readOnly}`),
      ['configuration true', 'snapshots true'],
    );
    const volumes = list(pod?.volumes).map(({ name }) => String(name));
    const mounted = list(node?.volumeMounts).map(({ name }) => String(name));
    t.deepEqual(mounted.sort(), volumes.sort(), 'every volume is there once and used');
  }
});

testWithHelm('the last CDI folder is writable, and none is mounted where GPUs are not divided', (t) => {
  const folders = (values: object) => {
    const pod = podOf(objectsOf(t, { ...values }), 'DaemonSet', 'cotenant-agent');
    const hosts = new Map(list(pod?.volumes).map(({ name, hostPath }) => [String(name), hostPath]));
    const mounts = list(pod?.containers?.[0]?.volumeMounts).filter(({ name }) => String(name).startsWith('cdi-'));
    for (const { name, mountPath } of mounts)
      t.like(hosts.get(String(name)), { path: String(mountPath), type: 'DirectoryOrCreate' });
    const [argument] = list(pod?.containers?.[0]?.args).filter((arg) => String(arg).includes('cdiFolders'));
    return [String(argument), ...mounts.map(({ mountPath, readOnly }) => `${mountPath}${readOnly ? ' to read' : ''}`)];
  };
  t.deepEqual(folders({}), [
    `--set=kubernetes.cdiFolders=${DEFAULTS.kubernetes.cdiFolders}`,
    '/etc/cdi to read',
    '/var/run/cdi',
  ]);
  t.deepEqual(folders({ nri: { cdiFolders: ['/var/cdi/dynamic'] } }), [
    '--set=kubernetes.cdiFolders=/var/cdi/dynamic',
    '/var/cdi/dynamic',
  ]);
  for (const none of [{ cdiFolders: [] }, { enabled: false }, { cdiFolders: null }])
    t.deepEqual(folders({ nri: none }), ['--set=kubernetes.cdiFolders=']);
});

testWithHelm('kubelet folders are mounted as needed under its root, pods bidirectionally', (t) => {
  const mounts = (values: object) => {
    const pod = podOf(objectsOf(t, { ...values }), 'DaemonSet', 'cotenant-agent');
    return list(pod?.containers?.[0]?.volumeMounts)
      .filter(({ mountPath }) => String(mountPath).includes('kubelet'))
      .map(({ mountPath, mountPropagation }) => `${mountPath} ${mountPropagation ?? ''}`.trim());
  };
  t.deepEqual(mounts({ csi: { enabled: false } }), ['/var/lib/kubelet/pod-resources']);
  t.deepEqual(mounts({ csi: { enabled: true }, kubelet: { root: '/data/kubelet' } }), [
    '/data/kubelet/pod-resources',
    '/data/kubelet/plugins/cotenant.io',
    '/data/kubelet/plugins_registry',
    '/data/kubelet/pods Bidirectional',
  ]);
  t.true(mounts({ csi: { enabled: true, slots: 'device-plugin' } }).includes('/var/lib/kubelet/device-plugins'));
  const driver = find(objectsOf(t, { csi: { enabled: true } }), 'CSIDriver', 'cotenant.io');
  t.like(driver.spec, {
    attachRequired: false,
    podInfoOnMount: true,
    volumeLifecycleModes: ['Ephemeral'],
    fsGroupPolicy: 'None',
    requiresRepublish: false,
  });
  t.is(String(driver.metadata?.annotations?.[NAMESPACE_ANNOTATION]), NAMESPACE);
  t.is(String(driver.metadata?.labels?.['security.openshift.io/csi-ephemeral-volume-profile']), 'restricted');
});

testWithHelm('the agent reads pods and writes Events, the webhook keeps certificate and rules', (t) => {
  const objects = objectsOf(t, ALL);
  const rules = list(find(objects, 'ClusterRole', 'cotenant-agent').rules);
  t.deepEqual(
    rules.map(({ resources, verbs }) => `${list(resources)}: ${list(verbs)}`),
    [
      'pods: get,list,watch',
      'events: create,patch',
      'resourceslices: list,watch',
      'tokenreviews: create',
      'subjectaccessreviews: create',
      'nodes: list,watch',
      'nodes/status: patch',
    ],
  );
  const [subject] = list(find(objects, 'ClusterRoleBinding', 'cotenant-agent').subjects);
  t.like(subject, { kind: 'ServiceAccount', name: 'cotenant-agent', namespace: NAMESPACE });
  const named = (kind: string) =>
    list(find(objects, kind, 'cotenant-webhook').rules).map(
      ({ resources, resourceNames, verbs }) => `${list(resources)} ${list(resourceNames)}: ${list(verbs)}`,
    );
  t.deepEqual(named('Role'), [
    'configmaps cotenant-webhook-rules: list,watch',
    'secrets cotenant-webhook-keys: get,create,patch',
    'services cotenant-webhook: get',
  ]);
  t.deepEqual(named('ClusterRole'), [
    'mutatingwebhookconfigurations,validatingwebhookconfigurations cotenant-webhook: get,patch',
  ]);
  for (const kind of ['RoleBinding', 'ClusterRoleBinding']) {
    const { roleRef, subjects } = find(objects, kind, 'cotenant-webhook');
    t.like(roleRef, { kind: kind.replace('Binding', ''), name: 'cotenant-webhook' });
    t.deepEqual(subjects as unknown, [{ kind: 'ServiceAccount', name: 'cotenant-webhook', namespace: NAMESPACE }]);
  }
  const roles = objects.filter(({ kind }) => /Role$/.test(String(kind))).map(({ metadata }) => String(metadata?.name));
  t.deepEqual(roles.sort(), [
    'cotenant-agent',
    'cotenant-scheduler',
    'cotenant-scheduler',
    'cotenant-status-reader',
    'cotenant-uninstall-check',
    'cotenant-webhook',
    'cotenant-webhook',
  ]);
});

testWithHelm('a webhook without live rules, its certificate from elsewhere, has no token', (t) => {
  const others: readonly object[] = [
    { source: 'generated' },
    { source: 'secret', secretName: 'mine', caBundle: 'PEM' },
    { source: 'certManager', issuerRef: { name: 'ours' } },
  ];
  for (const certificate of others) {
    const objects = objectsOf(t, {
      webhook: { enabled: true, certificate, liveRules: false },
      agent: { enabled: false },
      scheduler: { enabled: false },
    });
    const left = objects.filter(
      ({ kind, metadata }) =>
        /Role|ServiceAccount/.test(String(kind)) && String(metadata?.name) !== 'cotenant-uninstall-check',
    );
    t.deepEqual(left, []);
    const pod = podOf(objects, 'Deployment', 'cotenant-webhook');
    t.is(Boolean(pod?.automountServiceAccountToken), false);
    t.is(pod?.serviceAccountName, undefined);
  }
});

testWithHelm('a dialect lets the webhook look for its system, and do no more', (t) => {
  const configuration = { namespaces: { 'team-a': { dialects: ['kai'] } } };
  const certificate = { source: 'generated' };
  const values = (more: object) => ({
    webhook: { enabled: true, liveRules: false, ...more },
    agent: { enabled: false },
    scheduler: { enabled: false },
  });
  const looking = [
    'nodes: list,watch',
    'mutatingwebhookconfigurations: list,watch',
    'deployments gpushare-schd-extender,kai-scheduler-default,kubeshare-scheduler,qgpu-scheduler: list,watch',
  ];
  for (const [given, roles, before] of [
    [{ configuration, certificate }, ['ClusterRole', 'ClusterRoleBinding', 'ServiceAccount'], 0],
    [{ configuration }, ['ClusterRole', 'ClusterRoleBinding', 'Role', 'RoleBinding', 'ServiceAccount'], 1],
  ] as const) {
    const objects = objectsOf(t, values(given));
    const own = objects
      .filter(({ metadata }) => String(metadata?.name) === 'cotenant-webhook')
      .map(({ kind }) => String(kind));
    t.deepEqual(own.filter((kind) => /Role|ServiceAccount/.test(kind)).sort(), [...roles]);
    const rules = list(find(objects, 'ClusterRole', 'cotenant-webhook').rules).map(
      ({ resources, resourceNames, verbs }) =>
        [`${list(resources)}`, ...(resourceNames ? [`${list(resourceNames).toSorted()}`] : [])]
          .join(' ')
          .concat(`: ${list(verbs)}`),
    );
    t.deepEqual(rules.slice(before), looking);
    const pod = podOf(objects, 'Deployment', 'cotenant-webhook');
    t.is(String(pod?.serviceAccountName), 'cotenant-webhook');
    t.true(list(pod?.containers?.[0]?.args).map(String).includes('--foreign-systems'));
  }
  const off = podOf(objectsOf(t, values({})), 'Deployment', 'cotenant-webhook');
  t.false(list(off?.containers?.[0]?.args).map(String).includes('--foreign-systems'));
});

testWithHelm('before an uninstallation a Job that may only list pods checks for pods left', (t) => {
  const name = 'cotenant-uninstall-check';
  const objects = objectsOf(t, ALL);
  const hooks = objects.filter(({ metadata }) => metadata?.annotations?.['helm.sh/hook'] !== undefined);
  t.deepEqual(hooks.map(({ kind }) => String(kind)).sort(), [
    'ClusterRole',
    'ClusterRoleBinding',
    'Job',
    'ServiceAccount',
  ]);
  for (const { metadata, kind } of hooks) {
    const annotations = metadata?.annotations;
    t.is(String(metadata?.name), name);
    t.is(String(annotations?.['helm.sh/hook']), 'pre-delete');
    t.is(String(annotations?.['helm.sh/hook-delete-policy']), 'before-hook-creation,hook-succeeded');
    t.is(String(annotations?.['helm.sh/hook-weight']), String(kind) === 'Job' ? 'undefined' : '-1', String(kind));
  }
  t.deepEqual(find(objects, 'ClusterRole', name).rules as unknown, [
    { apiGroups: [''], resources: ['pods'], verbs: ['list'] },
  ]);
  const job = find(objects, 'Job', name);
  t.is(String(job.metadata?.annotations?.['helm.sh/hook-output-log-policy']), 'hook-failed');
  t.is(Number(job.spec?.backoffLimit), 0, 'it fails at the first answer');
  const [container] = list(podOf(objects, 'Job', name)?.containers);
  t.like(container?.securityContext, STRICT);
  const [command = '', ...words] = list(container?.args).map(String);
  t.is(command, uninstallCheck.name);
  t.like(parse(uninstallCheck, words), { values: { 'system-namespace': NAMESPACE } });
  t.is(String(container?.image), 'cotenant:0.1.0');
  t.is(String(container?.terminationMessagePolicy), 'FallbackToLogsOnError');
  // Where no pod can have the volume there is nothing to ask.
  const none = [
    { csi: { enabled: false }, webhook: { enabled: false } },
    { ...ALL, uninstallCheck: { enabled: false } },
  ];
  for (const values of none) t.false(objectsOf(t, values).some(({ kind }) => String(kind) === 'Job'));
});

testWithHelm("the program accepts the chart's command lines and settings", (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'cotenant-chart-'));
  t.teardown(() => rmSync(folder, { recursive: true }));
  const configuration = { intervalMs: 2000, interposerEngine: 3, enforcement: { mode: 'report', graceSeconds: 5 } };
  for (const given of [{}, { configuration }]) {
    const objects = objectsOf(t, { ...ALL, agent: given });
    const [node, served] = list(podOf(objects, 'DaemonSet', 'cotenant-agent')?.containers);
    const settingsOf = (container: Json | undefined, command: Command) => {
      const [name, ...args] = list(container?.args).map((arg) => String(arg).replace('$(NODE_NAME)', 'node-a'));
      t.is(name, command.name);
      const parsed = parse(command, args);
      return parsed === 'help' ? [] : (parsed.values.set as string[]);
    };
    const file = join(folder, 'configuration.yaml');
    writeFileSync(file, String(find(objects, 'ConfigMap', 'cotenant-agent').data?.['configuration.yaml']));
    t.like(configurationOf(file, settingsOf(served, exporter)), {
      host: '::',
      port: 9837,
      page: { socket: '/run/cotenant/snapshots.sock' },
      kubernetes: { nodeName: 'node-a' },
    });
    t.like(configurationOf(file, settingsOf(node, agent)), {
      page: { socket: '/run/cotenant/snapshots.sock', socketUser: 59_837 },
      stateFolder: '/var/lib/cotenant',
      kubernetes: { enabled: true, nodeName: 'node-a' },
      ...('configuration' in given ? configuration : {}),
    });
  }
  const [container] = list(podOf(objectsOf(t, ALL), 'Deployment', 'cotenant-webhook')?.containers);
  const [command, ...args] = list(container?.args).map(String);
  t.is(command, webhook.name);
  t.like(parse(webhook, args), { values: { port: '8443', 'health-port': '8080' }, operands: [] });
});

testWithHelm("commands in the runbook and the README name the chart's objects", (t) => {
  const objects = objectsOf(t, ALL);
  const pages = ['docs/operate/runbook.md', 'docs/operate/dashboards.md', 'charts/cotenant/README.md'].map((page) =>
    readFileSync(join(root, page), 'utf8'),
  );
  const text = pages.join('\n');
  const containers = workloads(objects).flatMap(({ spec }) =>
    list(spec?.template?.spec?.containers).map(({ name }) => String(name)),
  );
  for (const [, name = ''] of text.matchAll(/logs POD -c (\w+)/g)) t.true(containers.includes(name), name);
  const components = workloads(objects).map(({ metadata }) =>
    String(metadata?.labels?.['app.kubernetes.io/component']),
  );
  const said = [...text.matchAll(/app.kubernetes.io\/component=(\w+)/g)].map((match) => match[1] ?? '');
  t.true(said.length > 0 && said.every((each) => components.includes(each)), said.join());
  for (const [, path = ''] of text.matchAll(
    /`((?:agent|webhook|scheduler|csi|serviceMonitor|prometheusRule)\.[\w.]+)(?:=\w+)?`/g,
  )) {
    t.not(Object.keys(schemaAt(path.split('.'))).length, 0, `${path} is no setting`);
  }
  for (const [, address = ''] of text.matchAll(/`?--namespace (\S+)/g)) t.is(address, NAMESPACE);
});

testWithHelm('as many agents are replaced at once as the values say', (t) => {
  const mostOf = (values: Parameters<typeof objectsOf>[1]) =>
    find(objectsOf(t, values), 'DaemonSet', 'cotenant-agent').spec?.updateStrategy?.rollingUpdate?.maxUnavailable;
  t.is(String(mostOf({})), '1');
  t.is(String(mostOf({ agent: { maxUnavailable: '10%' } })), '10%');
});
