// What an explanation of a pod is made from and of: the facts about the pod, and causes with their times.
import { oneLine } from '../lib/text.ts';
import type { InventoryNode } from './inventory.ts';
import { type Event, type Node, type Pod, timeOfEvent } from './objects.ts';
import type { GoneHolder, Use } from './use.ts';

export type PodFacts = {
  readonly namespace: string;
  readonly name: string;
  /** Undefined: no pod has this name. */
  readonly pod?: Pod;
  /** Events of objects with the pod's name. */
  readonly events: readonly Event[];
  /** Without a pod: grants that agents hold for containers of such a pod. */
  readonly held?: readonly (GoneHolder & { readonly node: string })[];
  /** Without a pod: the namespace's Events about objects that could not be created. */
  readonly refusals?: readonly Event[];
  readonly node?: Node;
  /** Agents on the pod's node; undefined: the user may not read them. */
  readonly agents?: readonly Pod[];
  /** Pods of Cotenant's scheduler; undefined: the user may not read them. */
  readonly schedulers?: readonly Pod[];
  readonly use?: Use;
  /** Of a pending pod: what each node has free; absent: the user may not read it. */
  readonly free?: readonly Pick<InventoryNode, 'name' | 'free'>[];
  readonly notes: readonly string[];
};

export type Cause = {
  readonly at?: string;
  readonly reason?: 'launches-relieved' | 'neighbors-above-grant' | 'held-by-gone-pod';
  readonly text: string;
};
/** Causes without a time are present facts. */
const timeOf = ({ at }: Cause): number => (at === undefined ? Number.POSITIVE_INFINITY : Date.parse(at));
export const newestFirst = (causes: readonly Cause[]): Cause[] => causes.toSorted((a, b) => timeOf(b) - timeOf(a));
/** In whole seconds, as in most Kubernetes objects. */
export const cause = (at: string | undefined, text: string): Cause =>
  at === undefined ? { text } : { at: at.replace(/\.\d+Z$/, 'Z'), text };

export const eventMs = (event: Event): number => Date.parse(timeOfEvent(event) ?? '');

/** A message of another program as a sentence. */
export const sentence = (text: string): string => {
  const line = oneLine(text);
  return /[.!?…]$/.test(line) ? line : `${line}.`;
};
