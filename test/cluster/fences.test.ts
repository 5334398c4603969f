// The condition about fences on a real API server, beside the kubelet's own: the list of conditions is written by both.
import { eventually } from '../support/node.ts';
import { NAMESPACE } from './bed/product.ts';
import { testsOnWhole } from './support/shared.ts';

type Condition = { type: string; status: string; reason: string; message: string; lastTransitionTime: string };

const onCluster = testsOnWhole(['l4']);

onCluster('the Node says that limits hold, and the kubelet’s conditions stay', async (t, { bed }) => {
  const conditions = () =>
    (JSON.parse(bed.kubectl('get', 'node', '-o', 'json').out) as { items: { status: { conditions: Condition[] } }[] })
      .items[0]?.status.conditions ?? [];
  const told = await eventually(
    () => conditions().find(({ type }) => type === 'CotenantFencesHold'),
    'the Node has the condition',
    60_000,
  );
  t.like(told, { status: 'True', reason: 'FencesHold', message: 'what exceeds a grant is refused' });
  const since = () => conditions().find(({ type }) => type === 'CotenantFencesHold')?.lastTransitionTime;
  for (const type of ['Ready', 'MemoryPressure'])
    t.true(
      conditions().some((one) => one.type === type),
      type,
    );
  // An agent that starts anew tries again, and has nothing new to say.
  t.is(bed.kubectl('-n', NAMESPACE, 'rollout', 'restart', 'daemonset/cotenant-agent').code, 0);
  t.is(bed.kubectl('-n', NAMESPACE, 'rollout', 'status', 'daemonset/cotenant-agent', '--timeout=90s').code, 0);
  t.is(since(), told.lastTransitionTime);
});
