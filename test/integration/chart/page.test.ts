// The chart's settings of who may read the page: each reaches the container that needs it and no other, its right is
// there only with it, and what Prometheus gets fits.

import { STATUS_PATHS, STATUS_READER_ANNOTATION } from '../../../src/api/names.ts';
import { configurationOf } from '../../../src/cli/daemons/agent-settings.ts';
import { exporter as exporterCommand } from '../../../src/cli/daemons/exporter.ts';
import { parse } from '../../../src/cli/lib/command.ts';
import { ALL, CHART, find, helm, type Json, list, NAMESPACE, objectsOf, render, testWithHelm } from './chart.ts';

const exporterOf = (exporter: object) => ({ ...ALL, agent: { exporter } });
const TLS = { tls: { secretName: 'page-tls' } };
const BEARER = { bearerToken: { secretName: 'page-token', key: 'secret' } };
const REVIEW = { tokenReview: true };

const podOf = (objects: readonly Json[]) => find(objects, 'DaemonSet', 'cotenant-agent').spec?.template?.spec;
const endpointOf = (objects: readonly Json[]) => find(objects, 'ServiceMonitor', 'cotenant-agent').spec?.endpoints?.[0];
const mountsOf = (container: Json | undefined) => list(container?.volumeMounts).map(({ name }) => String(name));
const isReview = ({ resources }: Json) => /reviews$/.test(String(list(resources)[0]));

testWithHelm('the data of the status page is for tokens of one account, unless that is off', (t) => {
  const all = [objectsOf(t, ALL), objectsOf(t, exporterOf({ statusTokens: null }), '--skip-schema-validation')];
  for (const objects of all) {
    const pod = find(objects, 'DaemonSet', 'cotenant-agent').spec?.template;
    t.is(String(pod?.metadata?.annotations?.[STATUS_READER_ANNOTATION]), 'cotenant-status-reader');
    for (const { args } of list(pod?.spec?.containers))
      t.true(list(args).map(String).includes('--set=page.statusTokens=true'));
    t.is(list(find(objects, 'ClusterRole', 'cotenant-agent').rules).filter(isReview).length, 2);
    const role = find(objects, 'ClusterRole', 'cotenant-status-reader');
    t.deepEqual(role.rules as unknown, [{ nonResourceURLs: STATUS_PATHS, verbs: ['get'] }]);
    const { roleRef, subjects } = find(objects, 'ClusterRoleBinding', 'cotenant-status-reader');
    t.is(String(roleRef?.name), 'cotenant-status-reader');
    t.deepEqual(subjects as unknown, [
      { kind: 'ServiceAccount', name: 'cotenant-status-reader', namespace: NAMESPACE },
    ]);
  }
});

testWithHelm('without the settings, or with older values, no part of it is rendered', (t) => {
  const open = { statusTokens: false };
  const older = { ...open, tls: null, bearerToken: null, tokenReview: null };
  for (const objects of [objectsOf(t, exporterOf(open)), objectsOf(t, exporterOf(older), '--skip-schema-validation')]) {
    const [node, exporter] = list(podOf(objects)?.containers);
    const argv = [...list(node?.args), ...list(exporter?.args)].map(String);
    t.false(argv.some((each) => /page\.(?!socket)/.test(each)));
    t.false(mountsOf(node).includes('page'));
    t.deepEqual(mountsOf(exporter), ['configuration', 'snapshots']);
    for (const probe of [exporter?.readinessProbe, exporter?.livenessProbe]) t.is(probe?.httpGet?.scheme, undefined);
    t.false(list(find(objects, 'ClusterRole', 'cotenant-agent').rules).some(isReview));
    t.false(objects.some(({ metadata }) => /-(metrics|status)-reader$/.test(String(metadata?.name))));
    const pod = find(objects, 'DaemonSet', 'cotenant-agent').spec?.template;
    t.is(pod?.metadata?.annotations?.[STATUS_READER_ANNOTATION], undefined);
    const { scheme, tlsConfig, authorization, bearerTokenFile } = endpointOf(objects) ?? {};
    t.deepEqual([scheme, tlsConfig, authorization, bearerTokenFile], [undefined, undefined, undefined, undefined]);
  }
});

testWithHelm('only the container with the port gets the certificate; probes use HTTPS', (t) => {
  const objects = objectsOf(t, exporterOf(TLS));
  const [node, exporter] = list(podOf(objects)?.containers);
  t.deepEqual([mountsOf(node).includes('tls'), mountsOf(exporter).includes('tls')], [false, true]);
  const argv = list(exporter?.args).map(String);
  const pair = ['--set=page.certFile=/etc/cotenant/tls/tls.crt', '--set=page.keyFile=/etc/cotenant/tls/tls.key'];
  t.deepEqual(argv.slice(-2), pair);
  for (const probe of [exporter?.readinessProbe, exporter?.livenessProbe])
    t.is(String(probe?.httpGet?.scheme), 'HTTPS');
  t.deepEqual(endpointOf(objects)?.tlsConfig as unknown, {
    ca: { secret: { name: 'page-tls', key: 'ca.crt' } },
    serverName: `cotenant-agent.${NAMESPACE}.svc`,
  });
  t.is(String(endpointOf(objects)?.scheme), 'https');
  const own = { insecureSkipVerify: true };
  const chosen = objectsOf(t, { ...exporterOf(TLS), serviceMonitor: { enabled: true, tlsConfig: own } });
  t.deepEqual(endpointOf(chosen)?.tlsConfig as unknown, own);
});

testWithHelm('the token goes to the container that judges, and to Prometheus', (t) => {
  const objects = objectsOf(t, exporterOf(BEARER));
  const pod = podOf(objects);
  const [node, exporter] = list(pod?.containers);
  t.deepEqual([mountsOf(node).includes('page'), mountsOf(exporter).includes('page')], [false, true]);
  const volume = list(pod?.volumes).find(({ name }) => String(name) === 'page');
  t.deepEqual(volume?.secret as unknown, {
    secretName: 'page-token',
    defaultMode: 0o444,
    items: [{ key: 'secret', path: 'token' }],
  });
  t.deepEqual(endpointOf(objects)?.authorization as unknown, { credentials: { name: 'page-token', key: 'secret' } });
  t.is(endpointOf(objects)?.scheme, undefined);
});

testWithHelm('reviews bring their two permissions and a role for readers', (t) => {
  const objects = objectsOf(t, exporterOf({ ...REVIEW, ...TLS }));
  t.deepEqual(list(find(objects, 'ClusterRole', 'cotenant-agent').rules).filter(isReview) as unknown, [
    { apiGroups: ['authentication.k8s.io'], resources: ['tokenreviews'], verbs: ['create'] },
    { apiGroups: ['authorization.k8s.io'], resources: ['subjectaccessreviews'], verbs: ['create'] },
  ]);
  t.deepEqual(find(objects, 'ClusterRole', 'cotenant-metrics-reader').rules as unknown, [
    { nonResourceURLs: ['/metrics'], verbs: ['get'] },
  ]);
  t.regex(String(endpointOf(objects)?.bearerTokenFile), /serviceaccount\/token$/);
  const pod = podOf(objectsOf(t, exporterOf({ ...BEARER, ...REVIEW })));
  const pages = list(pod?.containers).map((container) => {
    const args = list(container.args).map((arg) => String(arg).replace('$(NODE_NAME)', 'node-a'));
    const parsed = parse(exporterCommand, args.slice(1));
    return parsed === 'help' ? undefined : configurationOf(undefined, parsed.values.set as string[]).page;
  });
  const both = {
    socket: '/run/cotenant/snapshots.sock',
    tokenReview: true,
    statusTokens: true,
    certFile: '',
    keyFile: '',
  };
  t.deepEqual(pages, [
    // It has the token with which the API server is asked.
    { ...both, socketUser: 59_837, bearerTokenFile: '' },
    { ...both, socketUser: 0, bearerTokenFile: '/etc/cotenant/page/token' },
  ]);
  const tokens = list(pod?.containers).map((container) => mountsOf(container).includes('token'));
  t.deepEqual(tokens, [true, false]);
});

testWithHelm('Prometheus sends its own token only over HTTPS, unless plain HTTP is allowed', (t) => {
  const open = (exporter: object, monitor: object = {}) =>
    render({ agent: { exporter }, serviceMonitor: { enabled: true, ...monitor } });
  const refused = open(REVIEW);
  t.false(refused.ok);
  t.regex(
    refused.text,
    /agent\.exporter\.tokenReview: Prometheus would send the token of its own service account in the clear/,
  );
  const shown = (rendered: ReturnType<typeof open>) => {
    t.true(rendered.ok, rendered.text);
    const endpoint = endpointOf(rendered.objects);
    return [endpoint?.scheme, endpoint?.bearerTokenFile !== undefined] as unknown;
  };
  t.deepEqual(shown(open({ ...REVIEW, ...TLS })), ['https', true]);
  t.deepEqual(shown(open(REVIEW, { tokenInTheClear: true })), [undefined, true]);
  t.deepEqual(shown(open({ ...REVIEW, ...BEARER })), [undefined, false], 'a token that opens this page alone');
  t.deepEqual(shown(open({}, { tokenInTheClear: true })), [undefined, false]);
  t.true(render({ agent: { exporter: REVIEW } }).ok, 'without a ServiceMonitor no client is asked to send anything');
});

testWithHelm('the agent may evict pods only where that is configured', (t) => {
  const mayEvict = (enforcement: object) =>
    list(find(objectsOf(t, { agent: { configuration: { enforcement } } }), 'ClusterRole', 'cotenant-agent').rules).some(
      ({ resources, verbs }) => `${list(resources)}: ${list(verbs)}` === 'pods/eviction: create',
    );
  t.deepEqual([mayEvict({}), mayEvict({ evictAfterStops: 0 }), mayEvict({ evictAfterStops: 3 })], [false, false, true]);
});

testWithHelm('the notes after installation say which accounts may read and warn of plain HTTP', (t) => {
  const notes = (...switches: readonly string[]) => {
    const argv = switches.flatMap((each) => ['--set', `agent.exporter.${each}`]);
    const { ok, text: output } = helm([
      'install',
      'cotenant',
      CHART,
      '--namespace',
      NAMESPACE,
      '--dry-run=client',
      ...argv,
    ]);
    t.true(ok, output);
    return output.split('NOTES:')[1] ?? '';
  };
  t.notRegex(notes(), /its metrics are for/);
  t.regex(notes('tokenReview=true'), /ClusterRole cotenant-metrics-reader; OVER PLAIN HTTP/);
  const both = notes('tokenReview=true', 'bearerToken.secretName=one', 'tls.secretName=two');
  t.regex(both, /bearers of the token in the Secret one, and subjects bound to .*-metrics-reader$/m);
});

testWithHelm('arguments and variables of one half reach that half alone', (t) => {
  const more = (half: string) => ({
    extraArgs: [`--set=intervalMs=${half === 'node' ? 2000 : 3000}`],
    extraEnv: [{ name: 'OWN', value: half }],
  });
  const objects = objectsOf(t, { ...ALL, agent: { node: more('node'), exporter: more('exporter') } });
  const halves = list(podOf(objects)?.containers);
  t.deepEqual(
    halves.map(({ name, args, env }) => [
      String(name),
      String(list(args).at(-1)),
      String(list(env).find((one) => String(one.name) === 'OWN')?.value),
    ]),
    [
      ['node', '--set=intervalMs=2000', 'node'],
      ['exporter', '--set=intervalMs=3000', 'exporter'],
    ],
  );
});
