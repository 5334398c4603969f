// Families under the names of other exporters, from the same snapshot, for boards and alerts that people have. Off unless asked for.

import { COMPAT_NAMES, type CompatName, DCGM_HOSTNAME, listed } from '../../api/compat-exporters.ts';
import type { Family } from '../format/family.ts';
import { ack } from './ack.ts';
import { dcgm } from './dcgm.ts';
import { hami, hamiLegacy } from './hami.ts';
import { metagpu } from './metagpu.ts';
import type { CompatContext } from './shared.ts';

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
  const isRenamed = asked.has(DCGM_HOSTNAME);
  return COMPAT_NAMES.flatMap((name) => {
    if (name === 'dcgm' && isRenamed) return [dcgm(context, 'hostname')];
    return asked.has(name) ? [SETS[name](context)] : [];
  });
}
