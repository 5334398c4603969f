// Which cards there are, and which instances of those that MIG divides: read anew every so often, each with a place of
// its own for as long as the sampler lives.
#include <algorithm>

#include "sample.h"

namespace {
constexpr uint64_t INVENTORY_ROUNDS = 60;
}

// Cards by UUID, so that integrals survive a new enumeration. The place of each, where it was known before.
size_t Sampler::add_card(nvml::Device device, const std::string &uuid) {
    size_t index = 0;
    while (index < cards_.size() && cards_[index].uuid != uuid) index++;
    if (index == cards_.size()) {
        cards_.emplace_back();
        cards_[index].uuid = uuid;
        library_.device_text(device, "nvmlDeviceGetName", cards_[index].name);
    }
    cards_[index].gone = false;
    return index;
}

// Handles of instances end when a card is divided anew, so all that is known of them is read again.
void Sampler::add_instances(size_t parent) {
    std::vector<nvml::Device> devices;
    if (!cards_[parent].device) return;
    cards_[parent].divided = library_.instances(cards_[parent].device, devices);
    for (Card &card : cards_) {
        if (card.instance && card.parent == parent) card.gone = true;
    }
    std::vector<uint32_t> memories;
    for (nvml::Device device : devices) {
        std::string uuid;
        if (!library_.device_text(device, "nvmlDeviceGetUUID", uuid)) continue;
        const size_t index = add_card(device, uuid);
        Card &card = cards_[index];
        if (card.device != device) card.activity.forget(library_);
        card.device = device;
        card.instance = true;
        card.parent = parent;
        card.pci = cards_[parent].pci;
        library_.number(device, "nvmlDeviceGetGpuInstanceId", card.gpu_instance);
        library_.number(device, "nvmlDeviceGetComputeInstanceId", card.compute_instance);
        card.same_memory = std::find(memories.begin(), memories.end(), card.gpu_instance) != memories.end();
        memories.push_back(card.gpu_instance);
    }
}

void Sampler::read_inventory() {
    if (inventory_round_ != 0 && round_ - inventory_round_ < INVENTORY_ROUNDS) return;
    std::vector<nvml::Device> devices;
    if (!library_.devices(devices)) return;
    inventory_round_ = round_;
    for (nvml::Device device : devices) {
        std::string uuid;
        if (!library_.device_text(device, "nvmlDeviceGetUUID", uuid)) continue;
        const size_t index = add_card(device, uuid);
        if (cards_[index].device != device) {
            cards_[index].activity.forget(library_);
            cards_[index].device = device;
            library_.pci(device, cards_[index].pci);
            cards_[index].has_minor = library_.number(device, "nvmlDeviceGetMinorNumber", cards_[index].minor);
            cards_[index].tells_events = events_.watch(library_, device);
        }
    }
    // Behind them, so that cards are numbered as NVML numbers them.
    for (size_t i = 0, count = cards_.size(); i < count; i++) {
        if (!cards_[i].instance) add_instances(i);
    }
    for (Card &card : cards_) {
        if (card.gone) card.activity.forget(library_);
    }
}
