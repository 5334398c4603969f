// Who may bind, judged from a Lease. Pure: takes the Lease as last seen and both clocks.
import type { V1Lease } from '@kubernetes/client-node';

export type Leading =
  /**
   * `epoch` tells the grants of this leader from those of the ones before, unless the Lease was deleted; `term` is never the same
   * after somebody else has led.
   */
  | { readonly leads: true; readonly epoch: number; readonly term: string }
  | { readonly leads: false; readonly because: string };

export type SeenLease = {
  /** Of the object: one that was deleted and made anew counts its transitions from 0 again. */
  readonly uid: string;
  readonly holder: string;
  readonly transitions: number;
  /** By the holder's wall clock. */
  readonly renewedMs: number;
  readonly durationMs: number;
  /** When this renewal was first seen, by our own monotonic clock. */
  readonly seenMs: number;
};

export type Now = { readonly monotonicMs: number; readonly wallMs: number };

/** What follows from seeing the Lease again: only a renewal that is new makes it younger. */
export function seen({ metadata, spec }: V1Lease, before: SeenLease | undefined, monotonicMs: number): SeenLease {
  const renewedMs = spec?.renewTime === undefined ? 0 : new Date(spec.renewTime).getTime();
  const holder = spec?.holderIdentity ?? '';
  const same = before?.renewedMs === renewedMs && before.holder === holder;
  return {
    uid: metadata?.uid ?? '',
    holder,
    renewedMs,
    transitions: spec?.leaseTransitions ?? 0,
    durationMs: (spec?.leaseDurationSeconds ?? 0) * 1000,
    seenMs: same ? before.seenMs : monotonicMs,
  };
}

/**
 * kube-scheduler, in the same pod, holds the Lease as `<hostname>_<uuid>`. A Lease that is ours ends by whichever clock is first:
 * the time since its renewal was seen, and, as the holder's wall clock is that of this machine, the time that the renewal names.
 */
export function judge(lease: SeenLease | undefined, name: string, hostname: string, now: Now): Leading {
  if (!lease) return { leads: false, because: `there is no Lease ${name} yet` };
  const of = lease.holder.startsWith(`${hostname}_`);
  if (!of) return { leads: false, because: `${lease.holder || 'nobody'} holds the Lease ${name}, not ${hostname}` };
  const expired =
    now.monotonicMs >= lease.seenMs + lease.durationMs || now.wallMs >= lease.renewedMs + lease.durationMs;
  if (expired) return { leads: false, because: `the Lease ${name} of ${hostname} has not been renewed in time` };
  return { leads: true, epoch: lease.transitions, term: termOf(lease) };
}

export const termOf = ({ uid, holder, transitions }: SeenLease): string => `${uid} ${holder} ${transitions}`;
