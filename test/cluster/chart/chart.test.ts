// Every object of the chart, with everything switched on, validated by a real API server: types and fields, not only
// names.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { parseAllDocuments, stringify } from 'yaml';
import { testUnless } from '../../support/gate.ts';
import { BUILD_MS, lookForHelm, readyHelm } from '../../support/services/helm.ts';
import { bedTools, startBed } from '../bed/bed.ts';
import { NAMESPACE } from '../bed/product.ts';

const tools = bedTools(console.log, false);
const helm = lookForHelm();
const reason = tools.ok ? (helm.kind === 'missing' ? helm.reason : undefined) : tools.reason;
const CHART = join(import.meta.dirname, '../../../charts/cotenant');

type KubeObject = { apiVersion: string; kind: string; metadata: { name: string } };

testUnless(reason)('a real API server accepts every object of the chart with everything on', async (t) => {
  t.timeout(BUILD_MS);
  if (!tools.ok || helm.kind === 'missing') throw new Error(reason);
  const values = {
    serviceMonitor: { enabled: true },
    prometheusRule: { enabled: true },
    grafanaDashboard: { enabled: true },
  };
  const args = ['template', 'cotenant', CHART, '--namespace', NAMESPACE, '--values', '-'];
  const rendered = spawnSync(await readyHelm(helm), args, {
    input: stringify(values),
    encoding: 'utf8',
    maxBuffer: 1 << 26,
  });
  t.is(rendered.status, 0, rendered.stderr);
  // 1.1 is the version that helm and Kubernetes read.
  const documents = parseAllDocuments(rendered.stdout, { version: '1.1' });
  const objects = documents.map((document) => document.toJS() as KubeObject | null).filter((object) => object !== null);
  // Kinds of the Prometheus operator are unknown to a cluster without it.
  const judged = objects.filter(({ apiVersion }) => !apiVersion.startsWith('monitoring.coreos.com/'));
  t.true(judged.length > 10, String(judged.length));

  const bed = await startBed(tools, (line) => t.log(line));
  t.teardown(() => bed.close());
  bed.apply({ apiVersion: 'v1', kind: 'Namespace', metadata: { name: NAMESPACE } });
  for (const object of judged) {
    const apply = ['apply', '--server-side', '--dry-run=server', '--validate=strict', '-f', '-'];
    const { code, err } = bed.kubectlWith(JSON.stringify(object), ...apply);
    t.is(code, 0, `${object.kind} ${object.metadata.name}: ${err}`);
  }
  const wrong = { ...judged[0], spec: undefined, nonsense: 1 };
  t.not(bed.kubectlWith(JSON.stringify(wrong), 'apply', '--server-side', '--dry-run=server', '-f', '-').code, 0);
});
