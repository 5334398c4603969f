// The annotation `cotenant.io/request`: a pod's request as canonical JSON, so that a dialect is read once, by the
// webhook. One request has one text, and no other text is accepted: it was not written by the webhook.

import { type Checked, invalid, keyPath } from '../common/problem.ts';
import { err, ok } from '../common/result.ts';
import { parseVersionedJson } from '../common/schema.ts';
import { REQUEST_ANNOTATION } from './names.ts';
import { type MemoryAmount, type PodRequest, podRequest } from './request.ts';

const VERSION = 1;

/** The canonical text: fixed order of keys, absent values left out, containers by name. */
export function formatPodRequest(request: PodRequest): string {
  return JSON.stringify({
    version: VERSION,
    priority: request.priority,
    placement: request.placement,
    computePolicy: request.computePolicy,
    computeWeight: request.computeWeight,
    enforcement: request.enforcement,
    sameGpu: request.sameGpu,
    gpuModels: request.gpuModels.length > 0 ? request.gpuModels : undefined,
    gpuUuids: request.gpuUuids.length > 0 ? request.gpuUuids : undefined,
    containers: request.containers.map(({ name, kind, initIndex, dialect, asked, memoryIsolation, gpus }) => ({
      name,
      kind,
      initIndex,
      dialect,
      asked: Object.fromEntries(Object.entries(asked).sort(([a], [b]) => (a < b ? -1 : 1))),
      memoryIsolation,
      gpus: gpus.map(({ memory, memoryLimit, coresPercent, coresLimitPercent }) => ({
        memory: inOrder(memory),
        memoryLimit: memoryLimit && inOrder(memoryLimit),
        coresPercent,
        coresLimitPercent,
      })),
    })),
  });
}

/** Reads the annotation; fails with one problem on every text that `formatPodRequest` does not write. */
export function parsePodRequest(text: unknown): Checked<PodRequest> {
  const request = parseVersionedJson(podRequest, VERSION, String(text));
  if (request.ok && formatPodRequest(request.value) === text) return ok(request.value);
  const wrong = 'is not what the webhook writes';
  return err([invalid(keyPath('metadata.annotations', REQUEST_ANNOTATION), text, wrong, 'leave this annotation out')]);
}

function inOrder(amount: MemoryAmount): MemoryAmount {
  switch (amount.kind) {
    case 'bytes':
      return { kind: 'bytes', bytes: amount.bytes };
    case 'units':
      return { kind: 'units', units: amount.units, unitBytes: amount.unitBytes, rounding: 'cgpu' };
    case 'percent':
      return { kind: 'percent', percent: amount.percent };
    case 'whole':
      return { kind: 'whole' };
  }
}
