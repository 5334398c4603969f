// Programs built with gcc's AddressSanitizer, whose runtime ends a program that has another object before it in the order of
// loading, as a preloaded one is.
import { execFileSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { startNode, temporaryFolder } from '../../support/native/node.ts';
import { runTenant, startAgent } from '../../support/product/agent.ts';

test("a program built with gcc's AddressSanitizer runs in a grant", async (t) => {
  const folder = temporaryFolder(t);
  writeFileSync(join(folder, 'plain.c'), 'int main(void) { return 7; }\n');
  const program = join(folder, 'plain');
  execFileSync('gcc', ['-fsanitize=address', join(folder, 'plain.c'), '-o', program]);
  const node = await startNode(t, '--gpu', 't4');
  const agent = await startAgent(t, node);
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'checked'], [program]);
  t.is((await tenant.ended).code, 7);
});
