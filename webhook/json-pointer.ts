// JSON Pointers (RFC 6901).
import { keyPath } from '../src/common/problem.ts';

/** One step: `~` first, or the second replacement would be escaped again. */
export function escapeStep(step: string): string {
  return step.replaceAll('~', '~0').replaceAll('/', '~1');
}

export function unescapeStep(step: string): string {
  return step.includes('~') ? step.replaceAll('~1', '/').replaceAll('~0', '~') : step;
}

/** Empty: the whole document. */
export function pointerSteps(pointer: string): string[] {
  return pointer.split('/').slice(1).map(unescapeStep);
}

/** The field path of a pointer, as Kubernetes writes it: `spec.containers[0].env`. */
export function fieldPath(pointer: string): string {
  return pointerSteps(pointer).reduce((path, step) => {
    if (/^(\d+|-)$/.test(step)) return `${path}[${step}]`;
    if (/[./]/.test(step)) return keyPath(path, step);
    return path === '' ? step : `${path}.${step}`;
  }, '');
}
