// `cotenant inspect`: GPUs, grants and use, of this machine by its agent, or of a cluster by its API server.

import { readCluster } from '../../cluster/collect.ts';
import { inventoryOf } from '../../cluster/inventory.ts';
import { readSnapshot, stateFolder } from '../../lib/agent-client.ts';
import { type Command, flag, text } from '../../lib/command.ts';
import { formOf, OUTPUT_OPTIONS, print } from '../../lib/output.ts';
import { allNamespacesOption, clusterOf, namespaceOption, systemOf, WHERE_OPTIONS } from '../../options/target.ts';
import { inventoryLines } from '../../output/cluster-table.ts';
import { nodeLines } from '../../output/node-table.ts';

export const inspect: Command = {
  name: 'inspect',
  summary: 'Shows GPUs, grants and use, once: of this machine, or of a cluster.',
  usage: '[-o table|json|yaml] [-n NAMESPACE | -A] [--node NODE]',
  options: {
    ...OUTPUT_OPTIONS,
    namespace: namespaceOption('of a cluster: list containers of this one only'),
    'all-namespaces': allNamespacesOption('of a cluster: list containers of all namespaces. The default'),
    node: { value: 'NODE', help: 'of a cluster: only this node' },
    ...WHERE_OPTIONS,
  },
  notes: 'Without an agent on this machine, or with an option of a cluster, it asks the cluster; it only ever reads.',
  async run(parsed) {
    formOf(parsed);
    const cluster = await clusterOf(parsed);
    if (!cluster) {
      const snapshot = await readSnapshot(stateFolder(parsed));
      await print(parsed, snapshot, () => nodeLines(snapshot, process.stdout.columns || undefined));
      return 0;
    }
    const shown = flag(parsed, 'all-namespaces') ? undefined : text(parsed, 'namespace');
    const selection = { namespace: shown ?? cluster.namespace, node: text(parsed, 'node'), system: systemOf(parsed) };
    const inventory = inventoryOf(await readCluster(cluster, selection), shown);
    await print(parsed, inventory, () => inventoryLines(inventory, Date.now(), process.stdout.columns || undefined));
    return 0;
  },
};
