// Makes the guest a GPU node: completes the folder of its running simulator and writes the CDI specification. Prints the
// UUIDs of the GPUs.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { completeFolder } from '../../cluster/bed/gpu-folder.ts';
import { HOME } from './report.ts';

const [folder = ''] = process.argv.slice(2);
const { uuids, specification } = completeFolder(folder, join(HOME, 'native/build'));
writeFileSync('/etc/cdi/simulated.json', JSON.stringify(specification));
console.log(JSON.stringify(uuids));
