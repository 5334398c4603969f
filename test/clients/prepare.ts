// What takes longer to fetch than a test may say nothing, fetched before the tests. What cannot be had is theirs to say.
import { wheels } from './wheels.ts';

wheels();
