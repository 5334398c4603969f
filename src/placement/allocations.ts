// Who has what on which GPU of which node: the nodes' GPUs, what their agents have given away, and the bound pods' grants, added up. Owns the sums; where both
// come from (a watch, a binding that is under way) and what is decided by them is elsewhere. No I/O.

import type { GpuNeed } from '../api/gpu.ts';
import type { NodeGpus } from '../api/node-annotation.ts';
import type { NodeBooks } from './place-pod.ts';

/** What one bound pod takes. */
export type Booking = {
  readonly podUid: string;
  readonly nodeName: string;
  /** By UUID of the GPU. */
  readonly need: ReadonlyMap<string, GpuNeed>;
  /** GPUs that nobody else may get because this pod's grant cannot be read, and the clause that says so. */
  readonly closes?: { readonly gpuUuids: readonly string[]; readonly because: string };
};

export type Ledger = {
  setNode(name: string, gpus: NodeGpus): void;
  /** Its bookings stay: a node that comes back has them still. */
  removeNode(name: string): void;
  /** Replaces what the pod had. */
  book(booking: Booking): void;
  release(podUid: string): void;
  bookingOf(podUid: string): Booking | undefined;
  /** The same object until something changes on the node, so that what follows from it can be kept with it. */
  books(nodeName: string): NodeBooks | undefined;
  bookings(): Iterable<Booking>;
  bookingsOn(nodeName: string): Iterable<Booking>;
  gpusOf(nodeName: string): NodeGpus | undefined;
  nodeNames(): Iterable<string>;
  /** Grows with each change. */
  readonly version: number;
  /** Nodes that changed since that version; undefined: that is too long ago to be known. */
  changedSince(version: number): ReadonlySet<string> | undefined;
  readonly nodes: number;
};

/** Changes that are remembered: a request that was not seen for longer is decided anew. */
const REMEMBERED = 4096;

export function createLedger(): Ledger {
  const nodes = new Map<string, NodeGpus>();
  const byPod = new Map<string, Booking>();
  const byNode = new Map<string, Map<string, Booking>>();
  const summed = new Map<string, NodeBooks>();
  const changes: string[] = [];
  let version = 0;
  const changed = (nodeName: string): void => {
    summed.delete(nodeName);
    changes[version % REMEMBERED] = nodeName;
    version += 1;
  };
  const release = (podUid: string): void => {
    const booking = byPod.get(podUid);
    if (!booking) return;
    byPod.delete(podUid);
    const on = byNode.get(booking.nodeName);
    on?.delete(podUid);
    if (on?.size === 0) byNode.delete(booking.nodeName);
    changed(booking.nodeName);
  };
  return {
    setNode(name, gpus) {
      nodes.set(name, gpus);
      changed(name);
    },
    removeNode(name) {
      if (nodes.delete(name)) changed(name);
    },
    book(booking) {
      release(booking.podUid);
      byPod.set(booking.podUid, booking);
      const on = byNode.get(booking.nodeName) ?? new Map<string, Booking>();
      byNode.set(booking.nodeName, on.set(booking.podUid, booking));
      changed(booking.nodeName);
    },
    release,
    bookingOf: (podUid) => byPod.get(podUid),
    books(nodeName) {
      const known = summed.get(nodeName);
      const gpus = nodes.get(nodeName);
      if (known || !gpus) return known;
      const books = sum(gpus, [...(byNode.get(nodeName)?.values() ?? [])]);
      summed.set(nodeName, books);
      return books;
    },
    bookings: () => byPod.values(),
    bookingsOn: (nodeName) => byNode.get(nodeName)?.values() ?? [],
    gpusOf: (nodeName) => nodes.get(nodeName),
    nodeNames: () => nodes.keys(),
    get version() {
      return version;
    },
    changedSince(since) {
      if (version - since > REMEMBERED) return undefined;
      const names = new Set<string>();
      for (let at = since; at < version; at += 1) names.add(changes[at % REMEMBERED] ?? '');
      return names;
    },
    get nodes() {
      return nodes.size;
    },
  };
}

function sum({ mostTenantsPerGpu, gpus }: NodeGpus, bookings: readonly Booking[]): NodeBooks {
  return {
    mostTenantsPerGpu,
    gpus: gpus.map(({ gpuUuid, model, usableBytes, healthy, fault, unfenced, others }) => {
      const needs = [...(others ? [others] : []), ...bookings.flatMap(({ need }) => need.get(gpuUuid) ?? [])];
      const closing = bookings.find(({ closes }) => closes?.gpuUuids.includes(gpuUuid))?.closes;
      return {
        gpuUuid,
        model,
        usableBytes,
        healthy,
        ...(fault !== undefined && { fault }),
        ...(unfenced !== undefined && { unfenced }),
        ...(closing && { closed: closing.because }),
        grantedBytes: needs.reduce((total, need) => total + need.memoryBytes, 0),
        grantedCoresPercent: needs.reduce((total, need) => total + need.coresPercent, 0),
        tenants: needs.reduce((total, need) => total + need.tenants, 0),
      };
    }),
  };
}
