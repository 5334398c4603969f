// Which replica leads, judged from a Lease. Pure: takes the Lease as last seen and both clocks.
import type { V1Lease } from '@kubernetes/client-node';

export type LeadershipState =
  /**
   * `epoch` distinguishes the grants of this leader from those of earlier ones, unless the Lease was deleted; `term` is
   * never the same after another replica has led.
   */
  | { readonly leads: true; readonly epoch: number; readonly term: string }
  | { readonly leads: false; readonly because: string };

export type ObservedLease = {
  /** A Lease that was deleted and created again counts its transitions from 0. */
  readonly uid: string;
  readonly holder: string;
  readonly transitions: number;
  /** By the holder's wall clock. */
  readonly renewedMs: number;
  readonly durationMs: number;
  /** When this renewal was first seen, by this process's monotonic clock. */
  readonly seenMs: number;
};

type Now = { readonly monotonicMs: number; readonly wallMs: number };

/** Only a new renewal makes the Lease younger. */
export function observeLease(
  { metadata, spec }: V1Lease,
  before: ObservedLease | undefined,
  monotonicMs: number,
): ObservedLease {
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
 * kube-scheduler, in the same pod, holds the Lease as `<hostname>_<uuid>`. The Lease expires by whichever clock is
 * first: the time since its renewal was seen, and, as the holder's wall clock is that of this machine, the time in the
 * renewal.
 */
export function judgeLease(
  lease: ObservedLease | undefined,
  name: string,
  hostname: string,
  now: Now,
): LeadershipState {
  if (!lease) return { leads: false, because: `the Lease ${name} does not exist yet` };
  if (!lease.holder.startsWith(`${hostname}_`)) return { leads: false, because: heldBy(name, lease.holder, hostname) };
  const expired =
    now.monotonicMs >= lease.seenMs + lease.durationMs || now.wallMs >= lease.renewedMs + lease.durationMs;
  if (expired) return { leads: false, because: `${hostname} did not renew the Lease ${name} in time` };
  return { leads: true, epoch: lease.transitions, term: termOf(lease) };
}

export const heldBy = (name: string, holder: string | undefined, hostname: string): string =>
  `the Lease ${name} is held by ${holder || 'no replica'}, not by ${hostname}`;

export const termOf = ({ uid, holder, transitions }: ObservedLease): string => `${uid} ${holder} ${transitions}`;
