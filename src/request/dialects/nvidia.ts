// NVIDIA's own device plugin: whole GPUs (`nvidia.com/gpu`), replicas of a shared one (`nvidia.com/gpu.shared`), and MIG
// instances (`nvidia.com/mig-1g.5gb`), which become shares of the size in their name.
// Facts: github.com/NVIDIA/k8s-device-plugin, README ("Shared Access to GPUs"); NVIDIA's MIG User Guide, "Supported MIG
// Profiles"; cloud.google.com/kubernetes-engine, "About GPU sharing strategies in GKE".
import { type GpuShare, MOST_GPUS } from '../../api/request.ts';
import { textAt } from '../../common/json.ts';
import { type Checked, invalid } from '../../common/problem.ts';
import { MIB, parseWhole } from '../../common/quantity.ts';
import { err } from '../../common/result.ts';
import type { Rules } from '../rules/namespace-rules.ts';
import { partOfGpu } from './cotenant.ts';
import type { Answer, Asked, Dialect } from './dialect.ts';

const WHOLE = 'nvidia.com/gpu';
const REPLICA = 'nvidia.com/gpu.shared';
const MIG = 'nvidia.com/mig-';
/** Slices and GB; a suffix such as `.me` names engines for media, which every container has here. */
const PROFILE = /^nvidia\.com\/mig-([1-7])g\.(\d{1,3})gb(?:[.+-][a-z0-9.+-]*)?$/;
/**
 * Profiles of GPUs with four slices of compute (A30, RTX PRO 6000); others have seven. A 1g.24gb of an H100 with 96 GB is one
 * of seven, of which its memory lets four be: a quarter is no less than what either has.
 */
const OF_FOUR: readonly string[] = ['1g.6gb', '2g.12gb', '4g.24gb', '1g.24gb', '2g.48gb', '4g.96gb'];
/** Engines for graphics, which profiles of an RTX PRO 6000 alone name. */
const GRAPHICS = /[.+]gfx$/;
/** What GKE's nodes are selected by: there `nvidia.com/gpu: 1` is a replica, or a MIG instance. */
const GKE_CLIENTS = 'cloud.google.com/gke-max-shared-clients-per-gpu';
const GKE_PARTITION = 'cloud.google.com/gke-gpu-partition-size';
/**
 * MiB of a GB in a profile's name, which is rounded up: 1g.5gb has 4,864 MiB, 3g.20gb 19,968. With 1,024 two halves of
 * a GPU would not fit on it.
 */
const MIB_PER_GB = 1000;

export const nvidia: Dialect = {
  name: 'nvidia',
  resources: [WHOLE, REPLICA, MIG],
  environment: [],
  schedulers: [],
  zeroIsNothing: true,
  nodeLabels: [GKE_CLIENTS, GKE_PARTITION],
  read,
};

function read(asked: Asked, rules: Rules): Checked<Answer> {
  const [[resource, text] = ['', ''], other] = asked.amounts;
  const refuse = (wrong: string, right: string) => err([invalid(asked.amountPath(resource), text, wrong, right)]);
  // NVIDIA's plugin lets a container see only one kind, and does not say which.
  if (other !== undefined) return refuse(`is a second kind of GPU beside ${other[0]}`, 'leave one of the two out');
  const count = parseWhole(text, 1, MOST_GPUS);
  if (!count.ok)
    return refuse(count.error.wrong, (resource === WHOLE ? partOfGpu(text) : undefined) ?? count.error.right);
  const answer = (share: GpuShare): Checked<Answer> => ({
    ok: true,
    value: { gpus: Array.from({ length: count.value }, () => share), warnings: [] },
  });
  const partition = textAt(asked.nodeLabels, GKE_PARTITION);
  const clients = parseWhole(textAt(asked.nodeLabels, GKE_CLIENTS), 2, 100);
  const isReplica = resource === REPLICA || (resource === WHOLE && clients.ok);
  if (resource === WHOLE && partition === undefined && !isReplica) return answer({ memory: { kind: 'whole' } });
  if (isReplica) {
    const replicas = resource === WHOLE && clients.ok ? clients.value : rules.nvidiaReplicas;
    if (replicas === 0)
      return refuse(
        'is a replica, and no setting says of how many',
        'have nvidiaReplicas set, or write cotenant.io/gpu-memory',
      );
    if (count.value > 1)
      return refuse('replicas are no larger part of a GPU', 'write 1, or cotenant.io/gpu-memory for more memory');
    return answer({ memory: { kind: 'percent', percent: Math.floor(10_000 / replicas) / 100 } });
  }
  const profile = resource === WHOLE ? `${MIG}${partition}` : resource;
  const [, slices = '', gigabytes = ''] = PROFILE.exec(profile) ?? [];
  if (slices === '' || Number(gigabytes) === 0)
    return refuse('is for no MIG profile', `write ${MIG}1g.10gb or another`);
  const [parts, name] = [Number(slices), `${slices}g.${gigabytes}gb`];
  const most = OF_FOUR.includes(name) || GRAPHICS.test(profile) ? 4 : 7;
  if (parts === most) return answer({ memory: { kind: 'whole' } });
  const memory = { kind: 'bytes', bytes: Number(gigabytes) * MIB_PER_GB * MIB } as const;
  return answer({ memory, coresPercent: Math.floor((100 * parts) / most) });
}
