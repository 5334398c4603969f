// Which dialects exist, and which of them count under an operator's rules.
import type { Rules } from '../rules/namespace-rules.ts';
import { ack } from './ack.ts';
import { cotenant } from './cotenant.ts';
import type { Dialect } from './dialect.ts';
import { metagpu } from './metagpu.ts';

const FOREIGN: readonly Dialect[] = [ack, metagpu];

/** Our own names, always, and the dialects that are switched on. The others' resources are not ours to read. */
export function dialectsOf(rules: Rules): readonly Dialect[] {
  return [cotenant, ...FOREIGN.filter((dialect) => rules.dialects.some((name) => name === dialect.name))];
}
