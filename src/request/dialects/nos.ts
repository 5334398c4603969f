// nebuly's nos: `nvidia.com/gpu-10gb` is a slice of a GPU with 10 GB of memory under MPS. A container gets one slice.
// Facts: nebuly-ai.github.io/nos, "Getting started with MPS partitioning" and "Installation" of its scheduler. Its MIG
// names are those of dialect `nvidia`.
import { MOST_MEMORY_BYTES } from '../../api/request.ts';
import { type Checked, invalid } from '../../common/problem.ts';
import { GIB, parseWhole } from '../../common/quantity.ts';
import { err } from '../../common/result.ts';
import type { Answer, Asked, Dialect } from './dialect.ts';

const SLICE = 'nvidia.com/gpu-';

export const nos: Dialect = {
  name: 'nos',
  resources: [SLICE],
  environment: [],
  schedulers: ['nos-scheduler'],
  zeroIsNothing: true,
  read,
};

function read(asked: Asked): Checked<Answer> {
  const [[resource, text] = ['', ''], other] = asked.amounts;
  const path = asked.amountPath(resource);
  if (other !== undefined)
    return err([invalid(path, text, `is a second slice beside ${other[0]}`, 'write one slice of the size of both')]);
  const size = /^nvidia\.com\/gpu-(\d{1,6})gb$/.exec(resource)?.[1];
  const gigabytes = parseWhole(size ?? '', 1, MOST_MEMORY_BYTES / GIB);
  if (!gigabytes.ok) return err([invalid(path, text, 'is for no size of a slice', `write ${SLICE}10gb for 10 GiB`)]);
  const count = parseWhole(text, 1, 1);
  if (!count.ok) return err([invalid(path, text, 'is not one slice', `write 1, of the size that is needed`)]);
  return { ok: true, value: { gpus: [{ memory: { kind: 'bytes', bytes: gigabytes.value * GIB } }], warnings: [] } };
}
