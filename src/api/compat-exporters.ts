// The other exporters whose metric names the exporter can serve, and the setting that lists them. The collectors are in
// src/exporter/compat/.
export const COMPAT_NAMES = ['dcgm', 'hami', 'hami-legacy', 'metagpu', 'ack'] as const;
/** Instead of `dcgm`: with the label `hostname` for the node, which dcgm-exporter has since May 2026 (its #655). */
export const DCGM_HOSTNAME = 'dcgm-hostname';
/** What the setting may list. */
export const COMPAT_CHOICES = [COMPAT_NAMES[0], DCGM_HOSTNAME, ...COMPAT_NAMES.slice(1)] as const;
export type CompatName = (typeof COMPAT_NAMES)[number];

/** Those with series of single processes, for which a snapshot must list the processes. */
const WITH_PROCESSES: readonly CompatName[] = ['metagpu', 'ack'];

/** `list`: of `COMPAT_CHOICES`, with commas; unknown names are no error here. */
export const parseCompatList = (list: string): ReadonlySet<string> =>
  new Set(list.split(',').map((name) => name.trim()));

export const showsProcesses = (list: string): boolean => WITH_PROCESSES.some((name) => parseCompatList(list).has(name));

const CHOICE = ` *(${COMPAT_CHOICES.join('|')}) *`;
/** The form of the setting. */
export const COMPAT_LIST = new RegExp(`^(${CHOICE}(,${CHOICE})*)?$`);
