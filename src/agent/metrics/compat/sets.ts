// Families under the names of other exporters, from the same view, for boards and alerts that people have. Off unless asked for.
import type { Family } from '../family.ts';
import { ack } from './ack.ts';
import { dcgm } from './dcgm.ts';
import { hami, hamiLegacy } from './hami.ts';
import { metagpu } from './metagpu.ts';
import { COMPAT_NAMES, type CompatName, listed } from './names.ts';
import type { CompatContext } from './set.ts';

const SETS: Readonly<Record<CompatName, (context: CompatContext) => Family>> = {
  dcgm,
  hami,
  'hami-legacy': hamiLegacy,
  metagpu,
  ack,
};

/** `names`: as the setting has them. */
export function compatFamilies(names: string, context: CompatContext): readonly Family[] {
  const asked = listed(names);
  return COMPAT_NAMES.flatMap((name) => (asked.has(name) ? [SETS[name](context)] : []));
}
