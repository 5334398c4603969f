// One table of golden cases per dialect: limits in, shares per GPU or the refusal out.
import { GIB, MIB } from '../../../src/common/quantity.ts';
import { bytes, limit, percent, table, units, whole } from './tables.ts';

const G = 'cotenant.io/gpu';
const M = 'cotenant.io/gpu-memory';
const C = 'cotenant.io/gpu-cores';

table('our names', {
  'memory alone is a slice of one GPU': { limits: { [M]: '6Gi' }, expected: [bytes(6 * GIB)] },
  'amounts are totals that are split equally': {
    limits: { [G]: '2', [M]: '12Gi', [C]: '50' },
    expected: [
      { ...bytes(6 * GIB), coresPercent: 25 },
      { ...bytes(6 * GIB), coresPercent: 25 },
    ],
  },
  'GPUs alone are whole GPUs': { limits: { [G]: 2 }, expected: [whole, whole] },
  'compute alone comes with all memory of the GPU': {
    limits: { [C]: '2' },
    expected: [{ ...whole, coresPercent: 2 }],
  },
  'any spelling of an amount will do': {
    limits: { [G]: '2000m', [M]: '8388608Ki' },
    expected: [bytes(4 * GIB), bytes(4 * GIB)],
  },
  'one MiB is the least': { limits: { [M]: '1Mi' }, expected: [bytes(MIB)] },
  'decimal gigabytes are refused with both neighbors and the likely one': {
    limits: { [M]: '4G' },
    expected: [
      `${limit(M)}: "4G" is not a whole number of MiB on the GPU; write "3814Mi" or "3815Mi" (or "4Gi", if binary units were meant)`,
    ],
  },
  'a total that does not split is refused with the next ones that do': {
    limits: { [G]: '2', [M]: '3Mi' },
    expected: [`${limit(M)}: "3Mi" is not a whole number of MiB on each of 2 GPUs; write "2Mi" or "4Mi"`],
  },
  'less than one MiB': {
    limits: { [M]: '8' },
    expected: [`${limit(M)}: "8" counts bytes, and is not whole MiB; write "8Mi" or "8Gi"`],
  },
  'a bare number that was meant in MiB': {
    limits: { [M]: '4096' },
    expected: [`${limit(M)}: "4096" counts bytes, and is not whole MiB; write "4096Mi"`],
  },
  'a bare number over two GPUs': {
    limits: { [G]: '2', [M]: '4097' },
    expected: [`${limit(M)}: "4097" counts bytes, and is not whole MiB; write "4098Mi", the total`],
  },
  // What the API server makes of 8000 and 0.5 (kubernetes.io, API concepts, canonical form of quantities).
  'a bare number of thousands, as the API server writes it': {
    limits: { [M]: '8k' },
    expected: [`${limit(M)}: "8k" counts bytes, and is not whole MiB; write "8000Mi"`],
  },
  'half a unit, as the API server writes it': {
    limits: { [M]: '500m' },
    expected: [`${limit(M)}: "500m" counts bytes, and is not whole MiB; write "500Mi"`],
  },
  'decimal megabytes that are less than one MiB on each of two GPUs': {
    limits: { [G]: '2', [M]: '1M' },
    expected: [`${limit(M)}: "1M" is not a whole number of MiB on each of 2 GPUs; write "2Mi"`],
  },
  'less than one MiB with a binary unit': {
    limits: { [M]: '512Ki' },
    expected: [`${limit(M)}: "512Ki" is not a whole number of MiB on the GPU; write "1Mi"`],
  },
  'no memory': {
    limits: { [M]: '0' },
    expected: [`${limit(M)}: "0" is not more than 0; write at least 1Mi, or leave it out`],
  },
  'negative memory': {
    limits: { [G]: '4', [M]: '-1Gi' },
    expected: [`${limit(M)}: "-1Gi" is not more than 0; write at least 4Mi (1Mi on each of 4 GPUs), or leave it out`],
  },
  'more memory than any node has': {
    limits: { [M]: '1e30' },
    expected: [`${limit(M)}: "1e30" is more than any node has; write at most 1Pi`],
  },
  'a just too large amount': {
    limits: { [M]: '1025Ti' },
    expected: [`${limit(M)}: "1025Ti" is more than any node has; write at most 1Pi`],
  },
  'memory that is no quantity': {
    limits: { [M]: '4GB' },
    expected: [
      `${limit(M)}: "4GB" is not a quantity (digits, then nothing or one of m, k, M, G, T, Ki, Mi, Gi, Ti); write "4Gi"`,
    ],
  },
  'no GPUs': {
    limits: { [G]: '0' },
    expected: [
      `${limit(G)}: "0" is less than 1; write a whole number from 1 to 64, or leave ${G} out where the container needs no GPU`,
    ],
  },
  'half a GPU': {
    limits: { [G]: '500m' },
    expected: [
      `${limit(G)}: "500m" is not a whole number; write ${M}, such as "4Gi", and ${C} in percent for a part of a GPU`,
    ],
  },
  'a billion GPUs': {
    limits: { [G]: '1G' },
    expected: [`${limit(G)}: "1G" is more than 64; write ${M}: 1Gi`],
  },
  '101 percent of one GPU': {
    limits: { [C]: '101' },
    expected: [
      `${limit(C)}: "101" is more than 100; write a whole number from 1 to 100 (100 is all compute of the GPU), or leave it out`,
    ],
  },
  'no compute': {
    limits: { [M]: '1Gi', [C]: '0' },
    expected: [
      `${limit(C)}: "0" is less than 1; write a whole number from 1 to 100 (100 is all compute of the GPU), or leave it out`,
    ],
  },
  'compute that does not split': {
    limits: { [G]: '2', [M]: '2Gi', [C]: '25' },
    expected: [
      `${limit(C)}: "25" cannot be split equally over 2 GPUs in whole percent; write 24 or 26, the total over all GPUs`,
    ],
  },
  'two faults are both reported': {
    limits: { [M]: '1', [C]: '500' },
    expected: [
      `${limit(M)}: "1" counts bytes, and is not whole MiB; write "1Mi" or "1Gi"`,
      `${limit(C)}: "500" is more than 100; write a whole number from 1 to 100 (100 is all compute of the GPU), or leave it out`,
    ],
  },
});

const MEM = 'aliyun.com/gpu-mem';
const PCT = 'aliyun.com/gpu-core.percentage';
const four = { labels: { 'aliyun.com/gpu-count': '4' } };
const disabled = (value: string) => ({ env: [{ name: 'CGPU_DISABLE', value }] });

table('ACK', {
  'units are proportional, as cGPU has them': { limits: { [MEM]: 3 }, expected: [units(3)] },
  'literal sizes where the operator allows them': {
    limits: { [MEM]: '3' },
    settings: { ack: { rounding: 'literal' } },
    expected: [bytes(3 * GIB)],
  },
  'a cluster that counts in MiB': {
    limits: { [MEM]: '16276' },
    settings: { ack: { unit: 'MiB' } },
    expected: [units(16276, MIB)],
  },
  'a cluster that counts in 128 MiB': {
    limits: { [MEM]: '5' },
    settings: { ack: { unit: '128MiB' } },
    expected: [units(5, 128 * MIB)],
  },
  'memory and compute': { limits: { [MEM]: '2', [PCT]: '30' }, expected: [{ ...units(2), coresPercent: 30 }] },
  'compute in other steps than five': {
    limits: { [MEM]: '2', [PCT]: '2' },
    expected: [{ ...units(2), coresPercent: 2 }],
  },
  'the pod label spreads the total over GPUs': {
    limits: { [MEM]: '8' },
    ...four,
    expected: [units(2), units(2), units(2), units(2)],
  },
  'a total that does not split over the label': {
    limits: { [MEM]: '9' },
    ...four,
    expected: [
      `${limit(MEM)}: "9" cannot be split equally over the 4 GPUs of label aliyun.com/gpu-count; write 8 or 12`,
    ],
  },
  'fewer units than GPUs': {
    limits: { [MEM]: '3' },
    ...four,
    expected: [`${limit(MEM)}: "3" cannot be split equally over the 4 GPUs of label aliyun.com/gpu-count; write 4`],
  },
  'a label that is no number': {
    limits: { [MEM]: '8' },
    labels: { 'aliyun.com/gpu-count': 'four' },
    expected: [
      'metadata.labels["aliyun.com/gpu-count"]: "four" is not a quantity (digits, then nothing or one of m, k, M, G, T, Ki, Mi, Gi, Ti); write a whole number from 1 to 64',
    ],
  },
  'compute over several GPUs': {
    limits: { [MEM]: '8', [PCT]: '30' },
    ...four,
    expected: Array.from({ length: 4 }, () => ({ ...units(2), coresPercent: 30 })),
  },
  'compute without memory': {
    limits: { [PCT]: '30' },
    expected: [`${limit(MEM)}: is missing; ${PCT} needs an amount of ${MEM}`],
  },
  'compute above a GPU': {
    limits: { [MEM]: '2', [PCT]: '101' },
    expected: [`${limit(PCT)}: "101" is more than 100; write a whole number from 1 to 100: percent of one GPU`],
  },
  'a fraction of a unit': {
    limits: { [MEM]: '5.5' },
    expected: [`${limit(MEM)}: "5.5" is not a whole number; write 5 or 6`],
  },
  'zero units ask for nothing': { limits: { [MEM]: '0' }, expected: 'none' },
  'zero units beside compute': {
    limits: { [MEM]: '0', [PCT]: '5' },
    expected: [`${limit(MEM)}: "0" is less than 1; write a whole number from 1 to 1048576`],
  },
  overflow: {
    limits: { [MEM]: '1e30' },
    expected: [`${limit(MEM)}: "1e30" is more than 1048576; write a whole number from 1 to 1048576`],
  },
  'isolation off is refused until it is allowed': {
    limits: { [MEM]: '3' },
    ...disabled('1'),
    expected: [
      'spec.containers[0].env: "CGPU_DISABLE=1" switches isolation off, which is not allowed here; leave it out, or have allowMemoryIsolationOff switched on',
    ],
  },
  'isolation off where it is allowed': {
    limits: { [MEM]: '3' },
    settings: { allowMemoryIsolationOff: true },
    ...disabled('true'),
    expected: [units(3)],
  },
  'isolation not switched off': { limits: { [MEM]: '3' }, ...disabled('false'), expected: [units(3)] },
  'a switch that comes from elsewhere cannot be read': {
    limits: { [MEM]: '3' },
    env: [{ name: 'CGPU_DISABLE', valueFrom: { configMapKeyRef: { name: 'x', key: 'y' } } }],
    expected: [
      'spec.containers[0].env[0]: "CGPU_DISABLE" takes its value from elsewhere; write the value itself, true or false',
    ],
  },
  'not switched on: the names are ignored': { limits: { [MEM]: '3' }, settings: { dialects: [] }, expected: 'none' },
});

const U = 'cnvrg.io/metagpu';
const over = (value: string) => ({ annotations: { 'gpu-mem-limit.cnvrg.io/metagpu': value } });

table('MetaGPU', {
  '30 units are 30 percent of a GPU': { limits: { [U]: '30' }, expected: [percent(30)] },
  '100 units are a whole GPU': { limits: { [U]: 100 }, expected: [whole] },
  '150 units are a GPU and a half': { limits: { [U]: '150' }, expected: [whole, percent(50)] },
  '201 units are two GPUs and one percent': { limits: { [U]: '201' }, expected: [whole, whole, percent(1)] },
  'zero units ask for nothing': { limits: { [U]: '0' }, expected: 'none' },
  'a fraction of a unit': {
    limits: { [U]: '0.5' },
    expected: [`${limit(U)}: "0.5" is not a whole number; write 50: 100 is one GPU`],
  },
  'negative units': {
    limits: { [U]: '-1' },
    expected: [`${limit(U)}: "-1" is less than 1; write a whole number from 1 to 6400: 100 is one GPU`],
  },
  'more units than GPUs of any node': {
    limits: { [U]: '1e30' },
    expected: [`${limit(U)}: "1e30" is more than 6400; write a whole number from 1 to 6400: 100 is one GPU`],
  },
  'a limit above the reserve where overcommit is allowed': {
    limits: { [U]: '33' },
    settings: { allowMemoryOvercommit: true },
    ...over('50'),
    expected: [{ ...percent(33), memoryLimit: { kind: 'percent', percent: 50 } }],
  },
  'a limit of the whole second GPU': {
    limits: { [U]: '150' },
    settings: { allowMemoryOvercommit: true },
    ...over('200'),
    expected: [whole, { ...percent(50), memoryLimit: { kind: 'whole' } }],
  },
  'a limit that is the reserve is no overcommit': { limits: { [U]: '33' }, ...over('33'), expected: [percent(33)] },
  'overcommit where it is not allowed': {
    limits: { [U]: '33' },
    ...over('50'),
    expected: [
      'metadata.annotations["gpu-mem-limit.cnvrg.io/metagpu"]: "50" is more than the 33 units that cnvrg.io/metagpu reserves, and overcommit is not allowed here; write 33, or have allowMemoryOvercommit switched on',
    ],
  },
  'a limit below the reserve': {
    limits: { [U]: '33' },
    ...over('20'),
    expected: [
      'metadata.annotations["gpu-mem-limit.cnvrg.io/metagpu"]: "20" is less than 33; write a whole number from 33 to 100: from what is reserved up to all memory of the GPU',
    ],
  },
  'a limit of more GPUs than are reserved': {
    limits: { [U]: '150' },
    settings: { allowMemoryOvercommit: true },
    ...over('201'),
    expected: [
      'metadata.annotations["gpu-mem-limit.cnvrg.io/metagpu"]: "201" is more than 200; write a whole number from 150 to 200: from what is reserved up to all memory of 2 GPUs',
    ],
  },
  'not switched on: the name is ignored': { limits: { [U]: '30' }, settings: { dialects: ['ack'] }, expected: 'none' },
});
