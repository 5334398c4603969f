// Asks this machine's agent for a grant, and says what was granted.
import { setTimeout as delay } from 'node:timers/promises';
import type { GrantAnswer, GrantBody } from '../../agent/admin-api.ts';
import { smallShareWarning } from '../../api/request.ts';
import { MIB } from '../../common/quantity.ts';
import { ask, errorOf } from './agent-client.ts';

/** Longest time that a starting agent needs to calibrate its GPUs. */
const START_TIMEOUT_MS = 60_000;

/** The grant, or why there is none. */
export async function askForGrant<T extends GrantAnswer>(folder: string, body: GrantBody): Promise<T | string> {
  const until = Date.now() + START_TIMEOUT_MS;
  for (;;) {
    const answer = await ask(folder, 'POST', '/v1/grants', body);
    if (answer.status === 201) return answer.body as T;
    if (answer.status !== 503 || Date.now() > until) return errorOf(answer);
    await delay(250);
  }
}

export function grantLines(name: string, { gpus, leased }: GrantAnswer): readonly string[] {
  const [first] = gpus;
  const small = smallShareWarning(Math.min(...gpus.map((gpu) => gpu.memoryBytes)));
  const cores = first?.coresPercent ?? 0;
  return [
    `${name}: ${gpus.map((gpu) => `${gpu.memoryBytes / MIB} MiB on ${gpu.gpuUuid}`).join(', ')}`,
    ...(small === undefined ? [] : [`warning: ${small}`]),
    ...(cores === 0
      ? []
      : [`${cores} % of each GPU's compute${leased ? '' : ' is recorded, but not enforced: the policy is native'}`]),
  ];
}
