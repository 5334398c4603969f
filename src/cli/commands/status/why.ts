// `cotenant why`: why a pod of the cluster is where it is, or what this machine's agent did to one of its tenants.
import { type ActionRecord, resultText } from '../../../agent/enforcement/action-record.ts';
import type { Cluster } from '../../cluster/api-client.ts';
import { readPod } from '../../cluster/collect.ts';
import { explain, explanationLines } from '../../cluster/explain-pod.ts';
import { ask, bodyOf, stateFolder } from '../../lib/agent-client.ts';
import { type Command, type Parsed, Refused, text, UsageError } from '../../lib/command.ts';
import { formOf, OUTPUT_OPTIONS, print } from '../../lib/output.ts';
import { oneLine } from '../../lib/text.ts';
import { clusterOf, namespaceOption, podNamed, systemOf, WHERE_OPTIONS } from '../../options/target.ts';

export const why: Command = {
  name: 'why',
  summary:
    'Explains why a pod is pending, waiting, refused or stopped; or lists the actions on a tenant of this machine.',
  usage: 'POD | NAMESPACE/POD | TENANT-OR-ID',
  options: {
    ...OUTPUT_OPTIONS,
    namespace: namespaceOption("of the pod (default the context's)"),
    ...WHERE_OPTIONS,
  },
  notes: 'Without an agent on this machine, or with an option of a cluster, it asks the cluster; it only ever reads.',
  takesOperands: true,
  async run(parsed) {
    formOf(parsed);
    const [name, ...rest] = parsed.operands;
    if (name === undefined || rest.length > 0) throw new UsageError('want one pod, or one tenant by name or id');
    const cluster = await clusterOf(parsed);
    return cluster ? whyPod(cluster, parsed, name) : whyTenant(parsed, name);
  },
};

async function whyPod(cluster: Cluster, parsed: Parsed, pod: string): Promise<number> {
  const { namespace, name } = podNamed(pod, text(parsed, 'namespace'), cluster.namespace);
  const explanation = explain(await readPod(cluster, namespace, name, systemOf(parsed)), Date.now());
  await print(parsed, explanation, () => explanationLines(explanation));
  return explanation.state === 'absent' ? 1 : 0;
}

async function whyTenant(parsed: Parsed, name: string): Promise<number> {
  const folder = stateFolder(parsed);
  const answer = await ask(folder, 'GET', `/v1/actions?of=${encodeURIComponent(name)}`);
  if (answer.status === 404)
    throw new Refused(`no tenant ${name} on this node, and no action on one of that name is recorded`);
  const records = bodyOf<readonly ActionRecord[]>(answer);
  const lines = records.map(
    (record) =>
      `${new Date(record.atMs).toISOString()} ${oneLine(`${record.action}: ${record.message} (${resultText(record)})`)}`,
  );
  await print(parsed, records, () => (lines.length > 0 ? lines : [`no action is recorded on ${name}`]));
  return 0;
}
