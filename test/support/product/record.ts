// The annotation that the webhook writes for a pod with one container that has a whole GPU.

import type { Mode } from '../../../src/api/request.ts';
import { formatPodRequest } from '../../../src/api/request-annotation.ts';

/** The annotation's text; `enforcement`: the mode of its namespace, if weaker than the node's. */
export const recordOf = (enforcement?: Exclude<Mode, 'enforce'>): string =>
  formatPodRequest({
    priority: 'normal',
    gpuModels: [],
    gpuUuids: [],
    ...(enforcement && { enforcement }),
    containers: [
      {
        name: 'main',
        kind: 'app',
        dialect: 'cotenant',
        asked: {},
        memoryIsolation: 'on',
        gpus: [{ memory: { kind: 'whole' } }],
      },
    ],
  });
