// `cotenant defrag`: which pods to move so that a share fits, and their eviction.
import type { V1PodDisruptionBudget } from '@kubernetes/client-node';
import { PLACEMENTS } from '../../../api/request.ts';
import { planDefrag } from '../../../scheduler/decisions/defrag.ts';
import type { Cluster } from '../../cluster/api-client.ts';
import { readNodesAndPods } from '../../cluster/collect.ts';
import { type DefragObjects, planLines, shownPlan, situationOf } from '../../cluster/defrag.ts';
import { movePods } from '../../cluster/move-pods.ts';
import { type Command, choice, flag, Refused, text, UsageError, whole } from '../../lib/command.ts';
import { formOf, OUTPUT_OPTIONS, print } from '../../lib/output.ts';
import { oneLine } from '../../lib/text.ts';
import { sharesOf } from '../../options/share.ts';
import { KUBECONFIG_OPTIONS, namedCluster } from '../../options/target.ts';

const LOOK_MS = 1000;
/** Of Kubernetes: above it are its own priority classes. */
const MOST_PRIORITY = 1_000_000_000;

export const defrag: Command = {
  name: 'defrag',
  summary: 'Shows the fewest pods that have to move so that a share of a GPU fits a node, and moves them on demand.',
  usage: '[--plan | --execute [--max N]] -m SIZE [--gpu-cores PERCENT] [--gpus N]',
  options: {
    plan: { help: 'only show the plan (default)' },
    execute: { help: 'evict the pods of the plan, one after the other' },
    'gpu-memory': { short: 'm', value: 'SIZE', help: 'GPU memory that shall fit, in total over its GPUs' },
    gpus: { value: 'N', help: 'number of GPUs (default 1)' },
    'gpu-cores': { value: 'PERCENT', help: 'percent of compute in total' },
    placement: {
      value: 'HOW',
      choices: PLACEMENTS,
      help: "the extender's default, by which pods are placed anew: binpack (default), spread, fragmentation or topology",
    },
    priority: { value: 'N', help: 'of the wanted share: pods of a higher priority stay (default 0)' },
    max: { value: 'N', help: 'with --execute: evict nothing where the plan has more pods (default 5)' },
    wait: { value: 'SECONDS', help: 'with --execute: for each pod to end and its successor to be bound (default 120)' },
    ...OUTPUT_OPTIONS,
    ...KUBECONFIG_OPTIONS,
  },
  notes:
    'Pods move that a controller makes anew, whose disruption budgets allow it, and that are not marked as not safe to evict. Exit code 1: there is no plan, or it could not be carried out.',
  async run(parsed) {
    formOf(parsed);
    const execute = flag(parsed, 'execute');
    if (execute && flag(parsed, 'plan')) throw new UsageError('--plan and --execute: want one of them');
    const limits = ['max', 'wait'].filter((name) => text(parsed, name) !== undefined);
    if (!execute && limits.length > 0) throw new UsageError(`--${limits[0]} goes with --execute`);
    const [most, waitSeconds] = [whole(parsed, 'max', 1, 1000) ?? 5, whole(parsed, 'wait', 1, 3600) ?? 120];
    const wanted = {
      shares: sharesOf(parsed),
      placement: choice(parsed, 'placement', PLACEMENTS) ?? 'binpack',
      priority: whole(parsed, 'priority', 0, MOST_PRIORITY) ?? 0,
    };
    const cluster = await namedCluster(parsed);
    const read = () => readObjects(cluster);
    const objects = await read();
    const situation = situationOf(objects, wanted);
    const plan = shownPlan(planDefrag(situation), situation, objects.pods);
    const say = (line: string) => console.error(`cotenant: ${oneLine(line)}`);
    await print(parsed, plan, () => planLines(plan).map((line) => oneLine(line, 4000)));
    if (!execute || plan.outcome !== 'moves') return plan.outcome === 'no plan' ? 1 : 0;
    if (plan.moves.length > most)
      throw new Refused(`nothing was evicted: the plan moves ${plan.moves.length} pods, --max allows ${most}`);
    const moved = await movePods(plan, {
      ...{ cluster, read, print: say, waitMs: waitSeconds * 1000, lookMs: LOOK_MS },
      situationOf: (now) => situationOf(now, wanted),
    });
    if (!moved.ok) throw new Refused(`stopped: ${moved.error}`);
    say(`${plan.wanted} fit node ${plan.node} now`);
    return 0;
  },
};

/** Without all of them no plan would be right. */
async function readObjects(cluster: Cluster): Promise<DefragObjects> {
  const { nodes, pods, notes } = await readNodesAndPods(cluster, { namespace: cluster.namespace });
  const budgets = await cluster.list<V1PodDisruptionBudget>('/apis/policy/v1/poddisruptionbudgets');
  if (!budgets.ok) throw new Refused(`disruption budgets cannot be listed: ${budgets.message}`);
  if (!nodes || notes.length > 0) throw new Refused(`a plan needs all nodes and pods. ${notes.join(' ')}`);
  return { nodes, pods, budgets: budgets.value };
}
