// Pods that come, use GPUs, are stopped or end, as many as a node has in days: the agent's node half keeps nothing of
// them. churn-inside.ts does it in a mount namespace of its own.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { namespacesReason, testUnless } from '../../../support/gate.ts';
import { temporaryFolder } from '../../../support/native/node.ts';

/** In each of two cycles: more than the agent keeps of the newest actions. */
const PODS = Number(process.env.COTENANT_PODS ?? 250);

testUnless(namespacesReason())('500 pods leave no object, mapping or descriptor of the agent behind', (t) => {
  t.timeout(600_000);
  const program = [process.execPath, join(import.meta.dirname, 'churn-inside.ts'), temporaryFolder(t), String(PODS)];
  const { status, stdout, stderr } = spawnSync('unshare', ['-m', '--propagation', 'private', ...program], {
    encoding: 'utf8',
  });
  t.is(status, 0, stderr);
  t.log(stdout);
  const { grown, mappings, left, actions, refused } = JSON.parse(stdout) as Record<string, unknown>;
  t.deepEqual({ grown, mappings, left, refused }, { grown: [], mappings: 0, left: 0, refused: 0 });
  t.true((actions as number) > PODS / 7, 'some were acted on');
});
