// Names under which other exporters' families are asked for in the settings, without the families themselves. Pure.
export const COMPAT_NAMES = ['dcgm', 'hami', 'hami-legacy', 'metagpu', 'ack'] as const;
/** In place of `dcgm`: its label for the node is `hostname`, as dcgm-exporter has it since May 2026 (its #655). */
export const DCGM_HOSTNAME = 'dcgm-hostname';
/** What may stand in the setting. */
export const COMPAT_WORDS = [COMPAT_NAMES[0], DCGM_HOSTNAME, ...COMPAT_NAMES.slice(1)] as const;
export type CompatName = (typeof COMPAT_NAMES)[number];

/** Sets with series of single processes, for which the page has to be told each of them. */
const OF_PROCESSES: readonly CompatName[] = ['metagpu', 'ack'];

/** `names`: of `COMPAT_WORDS`, with commas; others are no error here. */
export const listed = (names: string): ReadonlySet<string> => new Set(names.split(',').map((name) => name.trim()));

export const showsProcesses = (names: string): boolean => OF_PROCESSES.some((name) => listed(names).has(name));

/** May this stand in the setting? */
export const isCompatList = (names: string): boolean =>
  names === '' || names.split(',').every((name) => COMPAT_WORDS.some((known) => known === name.trim()));
