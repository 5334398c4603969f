// `cotenant fits`: which pods of manifests would fit the cluster now, where, and how many more.
import { PLACEMENTS } from '../../../api/request.ts';
import { readNodesAndPods } from '../../cluster/collect.ts';
import { fitLines, fitsOf } from '../../cluster/fits.ts';
import { type Command, choice, Refused, text } from '../../lib/command.ts';
import { formOf, OUTPUT_OPTIONS, print } from '../../lib/output.ts';
import { oneLine } from '../../lib/text.ts';
import { MANIFEST_OPTIONS, readManifests } from '../../options/manifests.ts';
import { KUBECONFIG_OPTIONS, namedCluster, namespaceOption } from '../../options/target.ts';

export const fits: Command = {
  name: 'fits',
  summary: "Shows which pods of manifests would fit the cluster's GPUs now, where, and how many more of them.",
  usage: '-f FILE [-f FILE ...] [--config FILE] [-n NAMESPACE] [-o table|yaml|json]',
  options: {
    ...MANIFEST_OPTIONS,
    placement: {
      value: 'HOW',
      choices: PLACEMENTS,
      help: 'for pods that choose none: binpack (default), spread, fragmentation or topology',
    },
    namespace: namespaceOption("of manifests that name none (default the context's)"),
    ...OUTPUT_OPTIONS,
    ...KUBECONFIG_OPTIONS,
  },
  notes: 'It creates nothing and counts GPUs alone. Its exit code is 1 where a pod does not fit or would be refused.',
  async run(parsed) {
    formOf(parsed);
    const { documents, configuration } = readManifests(parsed);
    const cluster = await namedCluster(parsed);
    const namespace = text(parsed, 'namespace') ?? cluster.namespace;
    const { nodes, pods, notes } = await readNodesAndPods(cluster, { namespace: cluster.namespace });
    if (!nodes) throw new Refused(notes.join(' '));
    const placement = choice(parsed, 'placement', PLACEMENTS) ?? 'binpack';
    const found = fitsOf(nodes, pods, { documents, configuration, placement, namespace });
    await print(parsed, found, () => [...fitLines(found), ...notes.map((note) => oneLine(note))]);
    return found.some(({ outcome }) => outcome === 'does not fit' || outcome === 'refused') ? 1 : 0;
  },
};
