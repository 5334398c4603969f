// What samples of a driver come to on the page, for tests that say the one and look at the other.
import type { Owner } from '../../../src/agent/attribution/attribute.ts';
import { accumulate } from '../../../src/agent/counters/accumulate.ts';
import { NO_TOTALS, type Totals } from '../../../src/agent/counters/totals.ts';
import type { Grant } from '../../../src/agent/grants/grant.ts';
import type { Sample } from '../../../src/agent/sampling/sample.ts';
import { createSnapshot, type NameOf } from '../../../src/agent/snapshot/snapshot.ts';
import type { NodeState } from '../../../src/agent/usage/node-usage.ts';
import { COMPAT_NAMES } from '../../../src/api/compat-exporters.ts';
import { processes } from '../../../src/exporter/collectors/process.ts';
import { compatCollectors } from '../../../src/exporter/compat/index.ts';
import { COLLECTORS, createRenderer } from '../../../src/exporter/render.ts';
import { seriesOf } from '../../support/product/agent.ts';
import { idleSelf } from '../../support/product/snapshots.ts';
import { compared, grantOf, owners, reading } from './node.ts';

const NAMELESS: NameOf = () => ({ namespace: '', pod: '', podUid: '', container: '' });
export type Owners = Readonly<Record<number, Owner>>;

const PAGE = createRenderer([
  ...COLLECTORS,
  processes,
  ...compatCollectors(COMPAT_NAMES.join(','), { nodeName: 'node-a' }),
]);
/** The page of our own families and of all that others know. */
export const show = async (state: NodeState, totals: Totals = NO_TOTALS): Promise<string> =>
  (await PAGE(createSnapshot({ state, totals, kills: [], recent: [], self: idleSelf, nameOf: NAMELESS }))).text;

/** Samples one after the other, each a second later, as the agent takes them. */
export function follow(samples: readonly Sample[], grants: readonly Grant[], byPid: Owners) {
  let totals = NO_TOTALS;
  let state: NodeState | undefined;
  for (const [index, sample] of samples.entries()) {
    state = compared(
      { ...sample, atMs: sample.atMs + index * 1000, bootNs: sample.bootNs + index * 1e9 },
      grants.map((grant) => reading(grant)),
      byPid,
    );
    totals = accumulate(totals, state, owners(byPid));
  }
  return { state: state as NodeState, totals };
}

/** A container of one pod, with its grant. */
export const pod = (id: string, container: string, mib = 1000, on = [0]) =>
  grantOf(id, mib, on, { namespace: 'team', pod: 'one', container });
export const used = (page: string, labels: Record<string, string>) =>
  seriesOf(page, 'cotenant_container_memory_used_bytes', labels);
