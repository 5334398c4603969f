// Families under the names of other exporters, from the same view, for boards and alerts that people have. Off unless asked for.
import type { Family } from '../family.ts';
import { ack } from './ack.ts';
import { dcgm } from './dcgm.ts';
import { hami, hamiLegacy } from './hami.ts';
import { metagpu } from './metagpu.ts';
import type { CompatContext } from './set.ts';

const SETS: Readonly<Record<string, (context: CompatContext) => Family>> = {
  dcgm,
  hami,
  'hami-legacy': hamiLegacy,
  metagpu,
  ack,
};
export const COMPAT_NAMES: readonly string[] = Object.keys(SETS);

/** Sets with series of single processes, for which the page has to be told each of them. */
const OF_PROCESSES: readonly string[] = ['metagpu', 'ack'];
const listed = (names: string): ReadonlySet<string> => new Set(names.split(',').map((name) => name.trim()));

export const showsProcesses = (names: string): boolean => OF_PROCESSES.some((name) => listed(names).has(name));

/** `names`: of `COMPAT_NAMES`, with commas; others are no error here. */
export function compatFamilies(names: string, context: CompatContext): readonly Family[] {
  const asked = listed(names);
  return Object.entries(SETS).flatMap(([name, create]) => (asked.has(name) ? [create(context)] : []));
}

/** May this stand in the setting? */
export const isCompatList = (names: string): boolean =>
  names === '' || names.split(',').every((name) => Object.hasOwn(SETS, name.trim()));
