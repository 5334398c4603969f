// `cotenant inspect`: GPUs, grants and use, of this machine by its agent, or of a cluster by its API server.

import { readCluster } from '../cluster/collect.ts';
import { inventoryOf } from '../cluster/inventory.ts';
import { readSnapshot, stateFolder } from '../lib/agent-client.ts';
import { type Command, text } from '../lib/command.ts';
import { jsonText } from '../lib/text.ts';
import { inventoryLines } from '../output/cluster-table.ts';
import { nodeLines } from '../output/node-table.ts';
import { clusterOf, namespaceOption, OUTPUT_OPTIONS, systemOf, WHERE_OPTIONS, wantsJson } from './target.ts';

export const inspect: Command = {
  name: 'inspect',
  summary: 'Shows GPUs, grants and use, once: of this machine, or of a cluster.',
  usage: '[-o table|json] [-n NAMESPACE] [--node NODE]',
  options: {
    ...OUTPUT_OPTIONS,
    namespace: namespaceOption('of a cluster: list containers of this one only'),
    node: { value: 'NODE', help: 'of a cluster: only this node' },
    ...WHERE_OPTIONS,
  },
  notes: 'Without an agent on this machine, or with an option of a cluster, it asks the cluster; it only ever reads.',
  async run(parsed) {
    const json = wantsJson(parsed);
    const cluster = await clusterOf(parsed);
    if (!cluster) {
      const snapshot = await readSnapshot(stateFolder(parsed));
      console.log(json ? jsonText(snapshot) : nodeLines(snapshot).join('\n'));
      return 0;
    }
    const shown = text(parsed, 'namespace');
    const selection = { namespace: shown ?? cluster.namespace, node: text(parsed, 'node'), system: systemOf(parsed) };
    const inventory = inventoryOf(await readCluster(cluster, selection), shown);
    console.log(json ? jsonText(inventory) : inventoryLines(inventory, Date.now()).join('\n'));
    return 0;
  },
};
