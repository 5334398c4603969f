// Collectors with the metric names of other exporters, from the same snapshot, for existing dashboards and alerts. Off
// by default.
import { COMPAT_NAMES, type CompatName, DCGM_HOSTNAME, parseCompatList } from '../../api/compat-exporters.ts';
import type { Collector } from '../collectors/collector.ts';
import { ack } from './ack.ts';
import { dcgm } from './dcgm.ts';
import { hami, hamiLegacy } from './hami.ts';
import { metagpu } from './metagpu.ts';
import type { CompatContext } from './shared.ts';

const COLLECTORS: Readonly<Record<CompatName, (context: CompatContext) => Collector>> = {
  dcgm,
  hami,
  'hami-legacy': hamiLegacy,
  metagpu,
  ack,
};

/** `list`: as in the settings, names with commas. */
export function compatCollectors(list: string, context: CompatContext): readonly Collector[] {
  const names = parseCompatList(list);
  return COMPAT_NAMES.flatMap((name) => {
    if (name === 'dcgm' && names.has(DCGM_HOSTNAME)) return [dcgm(context, 'hostname')];
    return names.has(name) ? [COLLECTORS[name](context)] : [];
  });
}
